"""The same as the command ``repdyn``."""

from repdyn.cli.main import main

if __name__ == "__main__":
    main()
