"""Encode images, texts and sounds: one base class, and one file per model library.

inputs       lists of images, texts and sounds; opening and checking them
encoder      the base class (batches, threads that open files, unit norms), and `load_encoder`
huggingface  transformers: CLIP, SigLIP, BLIP, CLAP and others
sentences    sentence-transformers
openclip     OpenCLIP
output       embeddings on disk: one memory-mapped file, resumable
"""

from nnnorm.encoders.encoder import Dtype, Encoder, Library, Modality, hash_files, load_encoder
from nnnorm.encoders.inputs import check_inputs, list_inputs, open_image
from nnnorm.encoders.output import Encoded, encode_to_folder, read_about
