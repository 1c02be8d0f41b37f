"""Captions are true of their scenes, vary, and use one small vocabulary."""

import re

import numpy as np

from nnnorm.datasets.captions import split_words, word_pairs, write_captions, write_searches
from nnnorm.datasets.scenes import COLOURS, SHAPES, make_scenes, read_scene

SCENES = make_scenes(300, seed=7)
NOUNS = {"disc": "circle", "rhombus": "diamond", "hoop": "ring", "plus": "cross"}
NOUNS |= {"crescent": "moon", "teardrop": "drop", "box": "square"} | {name: name for name in SHAPES}
SIZES = {"small": "small", "little": "small", "tiny": "small", "big": "big", "large": "big"}
SEEN_FROM = {
    "above": lambda a, b: a[0] < b[0],
    "over": lambda a, b: a[0] < b[0],
    "below": lambda a, b: a[0] > b[0],
    "under": lambda a, b: a[0] > b[0],
    "left of": lambda a, b: a[1] < b[1],
    "right of": lambda a, b: a[1] > b[1],
    "next to": lambda a, b: abs(a[0] - b[0]) + abs(a[1] - b[1]) == 1,
    "beside": lambda a, b: abs(a[0] - b[0]) + abs(a[1] - b[1]) == 1,
}
PHRASE = (
    r"(?:an?|the) ((?:(?:small|little|tiny|big|large) )?"
    rf"(?:(?:{'|'.join(COLOURS)}) )?(?:{'|'.join(NOUNS)}))\b"
)


def fitting(phrase, things):
    """The things of a scene that a phrase such as 'tiny red star' may mean."""
    *before, noun = phrase.split()
    out = []
    for thing in things:
        colour = [word for word in before if word in COLOURS]
        size = [SIZES[word] for word in before if word in SIZES]
        if (
            thing.shape == NOUNS[noun]
            and colour in ([], [thing.colour])
            and size in ([], [thing.size])
        ):
            out.append(thing)
    return out


def test_every_thing_that_a_caption_names_is_in_its_scene():
    for number, scene in enumerate(SCENES):
        _, things = read_scene(scene)
        for caption in write_captions(scene, seed=number):
            phrases = re.findall(PHRASE, caption)
            assert 1 <= len(phrases) <= 3, caption
            for phrase in phrases:
                assert fitting(phrase, things), (caption, things)


def test_things_stand_where_a_caption_says():
    checked = 0
    for number, scene in enumerate(SCENES):
        _, things = read_scene(scene)
        for caption in write_captions(scene, seed=number):
            relations = "|".join(SEEN_FROM)
            found = re.search(rf"{PHRASE} (?:to the )?({relations}) {PHRASE}", caption)
            if found is None:
                continue
            first, relation, second = found.groups()
            pairs = [
                (divmod(a.cell, 3), divmod(b.cell, 3))
                for a in fitting(first, things)
                for b in fitting(second, things)
                if a != b
            ]
            assert any(SEEN_FROM[relation](a, b) for a, b in pairs), (caption, things)
            checked += 1
    assert checked > 200


def test_corners_are_named_rightly():
    corners = {"top left": 0, "top right": 2, "bottom left": 6, "bottom right": 8}
    for number, scene in enumerate(SCENES):
        _, things = read_scene(scene)
        for caption in write_captions(scene, seed=number):
            for corner, cell in corners.items():
                for phrase in re.findall(rf"{PHRASE} (?:at|in) the {corner}", caption):
                    assert cell in [thing.cell for thing in fitting(phrase, things)], caption


def test_articles_agree():
    for number, scene in enumerate(SCENES):
        for caption in write_captions(scene, seed=number):
            assert not re.search(r"\ba [aeiou]|\ban [^aeiou]", caption), caption


def test_captions_vary_and_come_back_with_their_seed():
    captions = [c for n, scene in enumerate(SCENES) for c in write_captions(scene, seed=n)]
    assert len(captions) == 5 * len(SCENES)
    assert len(set(captions)) > 0.8 * len(captions)
    assert write_captions(SCENES[0], seed=4) == write_captions(SCENES[0], seed=4)
    assert len(write_captions(SCENES[0], 3)) == 3


def test_searches_use_the_same_words_but_other_sentences():
    captions = [c for n, scene in enumerate(SCENES) for c in write_captions(scene, seed=n)]
    searches = [c for n, scene in enumerate(SCENES) for c in write_searches(scene, seed=n)]
    words = {word for text in captions for word in split_words(text)}
    assert {word for text in searches for word in split_words(text)} <= words
    assert not {"a", "the", "and"} & {word for text in searches for word in split_words(text)}
    assert not set(captions) & set(searches)


def test_every_search_is_true_of_its_scene():
    for number, scene in enumerate(SCENES):
        _, things = read_scene(scene)
        colours = {thing.colour for thing in things}
        shapes = {thing.shape for thing in things}
        for search in write_searches(scene, seed=number):
            words = search.replace(" background", "").replace(",", "").split()
            assert {word for word in words if word in COLOURS} <= colours
            assert {NOUNS[word] for word in words if word in NOUNS} <= shapes


def test_words_and_pairs():
    assert split_words("A Red STAR, beside it: 2 rings!") == (
        ["a", "red", "star", "beside", "it", "2", "rings"]
    )
    assert word_pairs(split_words("a star to the left of the ring")) == ["star left", "left ring"]
    assert word_pairs(["star"]) == word_pairs([]) == []


def test_scenes_are_left_as_they_were():
    scene = SCENES[0].copy()
    write_captions(scene)
    assert np.array_equal(scene, SCENES[0])
