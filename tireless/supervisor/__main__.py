import sys

from tireless.supervisor.cli import main

sys.exit(main())
