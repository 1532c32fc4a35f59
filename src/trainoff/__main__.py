"""`python -m trainoff` is the command line."""

import sys

from trainoff.cli import main

sys.exit(main())
