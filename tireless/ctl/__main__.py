import sys

from tireless.ctl.cli import main

sys.exit(main())
