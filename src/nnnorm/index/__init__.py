"""The corrected search in vector databases, one file per engine.

`build_index` stores a gallery in a collection, `open_index` opens it again, and `copy_index` copies
a collection of your application and corrects the copy. All take a URL and return a
`CorrectedIndex`, which `verify_index` checks. Importing this loads no engine.
"""

from nnnorm.index.backend import Backend, Hits, Items
from nnnorm.index.config import CollectionInfo, IndexConfig
from nnnorm.index.corrected import CorrectedIndex, build_index, copy_index, open_index
from nnnorm.index.engines import ENGINES, open_backend
from nnnorm.index.verify import Verification, verify_index
