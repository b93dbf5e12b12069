"""Run the command line as `python -m slipform`."""

from slipform.cli import main

if __name__ == "__main__":
    main()
