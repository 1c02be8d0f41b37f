"""`nnnorm explore`: a local page on which a person sees the hubs, and sees them go.

material     embeddings in their roles, and what shows items and queries to a person
pictures     thumbnails, made when asked for
candidates   the first places of many queries under any correction
projection   items on a plane
keeping      answers that are kept, work that is done once
session      what one gallery's explorer keeps
views        what each view shows
packing      answers as typed arrays
routes       what every address answers, with its parameters
server       the HTTP interface, its checks and limits
recording    the same page without a server, and a table for Embedding Atlas
"""

from nnnorm.explore.material import Material, demo_material, open_material
from nnnorm.explore.packing import pack, unpack
from nnnorm.explore.pictures import FolderPictures
from nnnorm.explore.recording import record
from nnnorm.explore.server import listen, make_app, serve
from nnnorm.explore.session import Session
