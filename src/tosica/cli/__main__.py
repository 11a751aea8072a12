"""``python -m tosica.cli`` is ``tosica``."""

import sys

from tosica.cli import main

sys.exit(main())
