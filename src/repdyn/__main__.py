"""The same as the command ``repdyn``."""

from repdyn.command import main

if __name__ == "__main__":
    main()
