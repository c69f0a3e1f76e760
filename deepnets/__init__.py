"""deepnets: train very deep networks from YAML, and measure what lets depth work."""

import os
from contextlib import suppress

from deepnets.errors import UserError
from deepnets.system.files import cache_folder, own_cache

# Torch would load code from /tmp/torchinductor_USER, which another user may have created. It creates the folder as soon
# as there is an optimizer, and open to a group; who relies on it calls `own_cache` again, for the reason why it cannot.
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder() / "torchinductor"))
os.environ["TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"] = "0"  # they lie in /tmp/torchinductor_USER in any case
with suppress(UserError):
    own_cache()
