"""What pages that run code import in a hidden cell: no warnings of other packages, no bars."""

from __future__ import annotations

import logging
import warnings
from typing import Any

# Pages have no widgets; imports warn of it.
warnings.filterwarnings("ignore", message="IProgress not found")

import pandas as pd  # noqa: E402, I001
import tosica  # noqa: E402


def show_warning(
    message: Warning | str, category: type[Warning], *_args: Any, **_kwargs: Any
) -> None:
    """Print a warning without the name of the file that its cell is kept in."""
    print(f"{category.__name__}: {message}")


def hide_log() -> None:
    """Hide lines of the log that say what is done."""
    for name in ("lightning.pytorch", "lightning.fabric", "tosica"):
        logging.getLogger(name).setLevel(logging.WARNING)


for hidden in (DeprecationWarning, FutureWarning):
    warnings.simplefilter("ignore", hidden)
warnings.filterwarnings("ignore", module="lightning|umap|sklearn|tqdm|seaborn|mudata")
warnings.showwarning = show_warning
pd.set_option("display.precision", 3)
# Whether there is a bar depends on how busy this machine is.
tosica.settings.progress_bar = False
tosica.settings.seed = 0
