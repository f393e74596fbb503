"""`python -m robust201` is `robust201`."""

from robust201.cli.app import main

if __name__ == "__main__":
    main()
