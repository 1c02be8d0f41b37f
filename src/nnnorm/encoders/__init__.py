"""Images, texts and sounds to embeddings: one protocol, one file per model library."""

from nnnorm.encoders.encoder import Encoder
from nnnorm.encoders.load import load_encoder
from nnnorm.encoders.shards import Encoded, encode_to_folder

__all__ = ["Encoded", "Encoder", "encode_to_folder", "load_encoder"]
