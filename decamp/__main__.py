"""`python -m decamp` is the command line."""

from decamp.cli import main

if __name__ == "__main__":
    main()
