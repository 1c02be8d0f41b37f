"""`nnnorm explore`: a local page that shows hubs and the effect of a correction.

material     embeddings in their roles, what an index serves, captions and metadata
pictures     thumbnails, made when asked for
candidates   the first hits of many queries under any correction
projection   items on a plane
session      what one gallery's explorer keeps
views        what each view shows, as JSON
recording    the same views without a server
server       the HTTP interface, its checks and limits
"""

from nnnorm.explore.material import Material, demo_material, open_material
from nnnorm.explore.pictures import FolderPictures
from nnnorm.explore.recording import record
from nnnorm.explore.server import LOOPBACK, listen, make_app, make_server, serve
from nnnorm.explore.session import Session
