"""The paper's models that no library has: ALBEF, BEiT-3, and BLIP as its authors store it."""

from pathlib import Path
from typing import Any

from nnnorm import NNNormError
from nnnorm.encoders import Encoder, load_encoder
from reproduction.models.albef import Albef
from reproduction.models.beit3 import Beit3
from reproduction.models.blip import convert_blip, is_blip
from reproduction.models.checkpoints import CHECKPOINTS, read_checkpoint


def load_model(
    source: str,
    *,
    tokenizer: Path | None = None,
    image_size: int | None = None,
    device: str = "auto",
    work: Path | None = None,
) -> Encoder:
    """Load a model: a checkpoint of its authors, or whatever `load_encoder` loads."""
    path = Path(source)
    if path.suffix not in CHECKPOINTS:
        return load_encoder(source, device=device)
    state = read_checkpoint(path)
    options: dict[str, Any] = {"vocabulary": tokenizer, "image_size": image_size}
    if any(key.startswith("beit3.") for key in state):
        return Beit3(path, state, device=device, **options)
    if is_blip(state):
        folder = (work or path.parent) / f"{path.stem}-transformers"
        return load_encoder(str(convert_blip(path, state, folder, **options)), device=device)
    if any(key.startswith("visual_encoder.") for key in state):
        return Albef(path, state, device=device, **options)
    raise NNNormError(
        f"checkpoint {path} is neither ALBEF's or BLIP's (visual_encoder.…) nor BEiT-3's "
        f"(beit3.…); its tensors begin with {next(iter(state), 'nothing')}"
    )
