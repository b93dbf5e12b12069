"""`python -m slipform`: the command line."""

from slipform.cli import main

if __name__ == "__main__":
    main()
