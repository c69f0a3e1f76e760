"""deepnets: train very deep networks from YAML, and measure what lets depth work."""

import os
from contextlib import suppress

from deepnets.errors import UserError
from deepnets.system.files import cache_folder, own_cache

# Torch would load code from /tmp/torchinductor_USER, which another user may have created. With the first optimizer, it
# creates a folder that a group may write to, unless it is there. Code that needs `own_cache` calls it again, to raise.
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder() / "torchinductor"))
os.environ["TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"] = "0"  # it always puts them in /tmp/torchinductor_USER
with suppress(UserError):
    own_cache()
