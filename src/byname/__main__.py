"""What does ``python -m byname`` do? The same as the command ``byname``."""

import sys

from byname.cli import main

if __name__ == "__main__":
    sys.exit(main())
