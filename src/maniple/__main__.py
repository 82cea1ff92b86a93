"""``python -m maniple``: the command line."""

from __future__ import annotations

from maniple.cli import main

if __name__ == "__main__":
    main()
