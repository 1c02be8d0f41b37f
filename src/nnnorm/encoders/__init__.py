"""Images, texts and sounds to embeddings: one protocol, one file per model library."""

from nnnorm.encoders.encoder import Encoder, Modality
from nnnorm.encoders.images import open_image
from nnnorm.encoders.inputs import Listing, list_files, list_inputs, list_texts
from nnnorm.encoders.load import Library, load_encoder
from nnnorm.encoders.matching import Direction, Matched, match_to_files
from nnnorm.encoders.shards import Encoded, Plan, Share, encode_to_folder, plan_encoding
from nnnorm.encoders.weights import Dtype
