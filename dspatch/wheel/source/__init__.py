"""Build a wheel from source: what it takes, what this machine has, and the compiling itself."""
