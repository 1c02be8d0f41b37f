"""The corrected search inside existing engines, one file per library.

`build_index` stores a gallery in a collection, `open_index` opens it again, `copy_index` makes a
corrected copy of a collection of your application; all take a URL and return a `CorrectedIndex`,
which `verify_index` checks. Importing this loads no engine.
"""

from nnnorm.index.backend import Backend, Hits, Items
from nnnorm.index.config import CollectionInfo, IndexConfig
from nnnorm.index.corrected import CorrectedIndex, build_index, copy_index, open_index
from nnnorm.index.engines import ENGINES, open_backend
from nnnorm.index.verify import Verification, verify_index
