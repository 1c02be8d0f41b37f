"""Images, texts and sounds to embeddings: one base class, one file per model library.

encoder      the base class: batches, threads that open files, unit norm
huggingface  transformers: CLIP, SigLIP, BLIP, CLAP and others
sentences    sentence-transformers
openclip     OpenCLIP
load         choosing the library by the files of a model
loading      what all of them share: device, number type, errors while loading
images       opening images; `sounds` for sounds
inputs       lists of images, texts and sounds from folders, tables and data sets
output       embeddings on disk: one memory-mapped file, resumable
"""

from nnnorm.encoders.encoder import Encoder, Modality
from nnnorm.encoders.images import check_images, open_image
from nnnorm.encoders.inputs import list_files, list_ids, list_inputs, list_texts
from nnnorm.encoders.load import Library, load_encoder
from nnnorm.encoders.loading import Dtype
from nnnorm.encoders.output import Encoded, encode_to_folder
