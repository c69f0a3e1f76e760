"""deepnets: train very deep networks from YAML, and measure what lets depth work."""

import os
from contextlib import suppress

from deepnets.errors import UserError
from deepnets.system.files import cache_folder, own_cache

# By default torch loads code from /tmp/torchinductor_USER, which another user may have created. Torch's first optimizer
# creates a missing folder so that a group may write in it; therefore `own_cache` creates it now. Its errors are ignored
# here: code that needs the folder calls `own_cache` again.
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder() / "torchinductor"))
os.environ["TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"] = "0"  # always in /tmp/torchinductor_USER
with suppress(UserError):
    own_cache()
