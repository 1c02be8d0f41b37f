"""Copies and near copies of one intent, found in one pass: every intent counts once in a bank.

Query logs repeat themselves, and the k best references of a popular item would be k copies of one
query: popularity would pass for hubness.

near     which rows are so close that they are one intent
leaders  one row per intent, in the order of arrival
intents  the rows of a bank that stand for one intent each
"""

from nnnorm.copies.intents import (
    Duplicates,
    Intents,
    References,
    check_duplicates,
    count_intents,
    count_params,
    count_references,
    describe_intents,
    describe_size,
    find_intents,
    is_sample,
    used_rows,
    warn_of_few_intents,
    without_copies,
)
from nnnorm.copies.leaders import MOST_INTENTS, Leaders
from nnnorm.copies.near import SAME_INTENT, as_units, round_rows
