"""The corrected search inside existing engines, one file per library.

`build_index` stores a gallery and its bias in a collection, `open_index` opens it again,
`export_index` makes a corrected copy of an existing one, and `adopt_table` corrects a table of an
application in place; all take the store of an engine or its URL and return a `CorrectedIndex`,
which `verify_index` checks. Importing this loads no engine.
"""

from nnnorm.index.adoption import adopt_table
from nnnorm.index.corrected import CorrectedIndex, IndexRanking, build_index, open_index
from nnnorm.index.export import export_index
from nnnorm.index.recipe import Recipe
from nnnorm.index.store import Facts, Found, Items, Store, Way
from nnnorm.index.urls import ENGINES, open_store, show_url
from nnnorm.index.verify import Verification, adopt_index, verify_index
