"""The file of a corrector that `Corrector.save` wrote, read and checked."""

import os
from typing import Any

from nnnorm.augmentation import Augmentation
from nnnorm.bias import Bias
from nnnorm.errors import NNNormError
from nnnorm.files import damaged, load_record
from nnnorm.methods import make_method

MAKER = "nnnorm fit --save-corrector"


def load_fields(path: str | os.PathLike[str]) -> tuple[dict[str, Any], str]:
    """Read a file that `Corrector.save` wrote."""
    arrays, about = load_record(path, "corrector", MAKER)
    try:
        fields = {
            "method": make_method(about["method"]["name"], **about["method"]["params"]),
            "asked": make_method(about["asked"]["name"], **about["asked"]["params"]),
            "references": arrays["references"],
            "bias": Bias.from_dict(arrays, about["bias"]),
            "normalize": about["normalize"],
            "unit": about["unit"],
            "augmentation": Augmentation(**about["augmentation"]),
            "item_norms": tuple(about["item_norms"]),
            "duplicates": about["duplicates"],
            "sample": arrays["sample"],
            "center": arrays.get("center"),
            "gallery_references": arrays.get("gallery_references"),
        }
        return fields, about["fingerprint"]
    except NNNormError:
        raise
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise damaged(path, "corrector", MAKER, error) from error
