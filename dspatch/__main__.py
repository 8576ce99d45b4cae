"""`python -m dspatch`."""

from dspatch.cli import main

if __name__ == "__main__":
    main()
