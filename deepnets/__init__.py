"""deepnets: train very deep networks from YAML, and measure what lets depth work."""

import os
from contextlib import suppress

from deepnets.errors import UserError
from deepnets.system.files import cache_folder, own_cache

# Torch would load code from /tmp/torchinductor_USER, which another user may have created. It creates its folder as soon
# as there is an optimizer, and a group may write to it. Code that needs `own_cache` calls it again, to raise its error.
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder() / "torchinductor"))
os.environ["TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"] = "0"  # they lie in /tmp/torchinductor_USER in any case
with suppress(UserError):
    own_cache()
