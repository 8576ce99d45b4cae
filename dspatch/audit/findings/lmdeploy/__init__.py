"""The findings about LMDeploy."""
