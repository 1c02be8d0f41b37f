"""The methods: each takes a gallery and a bank of references and gives a `Bias`.

For a fixed query, a term that does not depend on the item never changes the ranking. Without such
terms, every method ranks by ``s(q, r) − b(r)`` (m_k: mean of the k best reference scores of an
item; L_β: log-mean-exp of β times its reference scores):

    none       uncorrected        0
    nnn        nnn                α·m_k
    csls       csls               ½·m_k
    dn         dn                 λ·m_all
    is         inverted_softmax   L_β/β
    qbnorm     … gated            the same, for queries whose raw best item is in an activation set
    dualis     dual_softmax       (L_βg(gallery bank) + L_βq(references)) / (βg + βq)
    dualdis    … gate             the same, each term behind its own activation set
    sinkhorn   sinkhorn           τ·log Σ_j w_j·exp(s_j/τ), w from entropic transport (`transport`)

The middle column is the file with the formula. `statistics` computes m_k and L_β, `base` has `fit`,
and `registry` finds a method by its name. No method normalizes embeddings. Values may differ from
those of a paper by a constant, which changes no ranking; it is chosen so that all are on the scale
of a score.
"""

from nnnorm.methods.base import (
    Grid,
    Method,
    Variant,
    is_mismatched,
    open_references,
    warn_of_mismatch,
)
from nnnorm.methods.csls import CSLS
from nnnorm.methods.dn import DN
from nnnorm.methods.dual_softmax import DualSoftmax, GateForm, published_product
from nnnorm.methods.inverted_softmax import InvertedSoftmax
from nnnorm.methods.nnn import NNN, PAPER_GRID
from nnnorm.methods.registry import (
    METHOD_NAMES,
    MethodName,
    describe_setting,
    find_method,
    label_method,
    make_method,
)
from nnnorm.methods.sinkhorn import Sinkhorn
from nnnorm.methods.statistics import BankName, Statistics
from nnnorm.methods.uncorrected import NO_CORRECTION, Uncorrected
