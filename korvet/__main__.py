"""`python -m korvet` is the `korvet` command."""

from korvet.cli import main

if __name__ == "__main__":
    main()
