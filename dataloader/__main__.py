"""`python -m dataloader` is the `dataloader` command."""

from dataloader.app.__main__ import main

if __name__ == "__main__":
    main()
