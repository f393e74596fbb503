"""`python -m pipeline` is `robust201`."""

from pipeline.cli import main

if __name__ == "__main__":
    main()
