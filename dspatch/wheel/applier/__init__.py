"""What a delta file runs: Python 3.8 or later, standard library only, copied into every delta."""
