"""``python -m codecl`` is the command ``codecl``."""

import sys

from codecl.experiments.cli import main

sys.exit(main())
