"""`python -m tpudet` is the command tpudet."""

import sys

from tpudet.cli import main

sys.exit(main())
