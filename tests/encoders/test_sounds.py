"""Sounds are mono, finite, and at the requested rate."""

import numpy as np
import pytest
import soundfile

from nnnorm import NNNormError
from nnnorm.encoders.inputs import check_inputs, read_sound

RATE = 16_000


def tone(rate, seconds=0.5, frequency=440):
    return np.sin(2 * np.pi * frequency * np.arange(int(rate * seconds)) / rate)


@pytest.mark.parametrize("kind", ["wav", "flac", "ogg"])
def test_a_file_at_the_right_rate_comes_as_it_is(tmp_path, kind):
    path = tmp_path / f"a.{kind}"
    soundfile.write(path, 0.5 * tone(RATE), RATE)
    samples = read_sound(path, RATE)
    assert samples.dtype == np.float32
    np.testing.assert_allclose(samples, 0.5 * tone(RATE), atol=2e-2 if kind == "ogg" else 1e-4)


def test_channels_are_averaged(tmp_path):
    soundfile.write(tmp_path / "a.wav", np.stack([tone(RATE), -0.5 * tone(RATE)], axis=1), RATE)
    np.testing.assert_allclose(read_sound(tmp_path / "a.wav", RATE), 0.25 * tone(RATE), atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("rate", [8_000, 44_100, 48_000])
def test_another_rate_is_resampled_to_the_same_tone(tmp_path, rate):
    soundfile.write(tmp_path / "a.wav", 0.5 * tone(rate), rate)
    samples = read_sound(tmp_path / "a.wav", RATE)
    assert len(samples) == RATE // 2
    np.testing.assert_allclose(samples[800:-800], 0.5 * tone(RATE)[800:-800], atol=2e-2)


def test_samples_are_taken_as_they_are():
    np.testing.assert_array_equal(read_sound([0.0, 1.0], RATE), [0, 1])


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        (np.zeros((2, 5)), r"must be mono, shape \(n_samples,\); got \(2, 5\)"),
        (np.zeros(0), "is empty"),
        (np.array([0.0, np.nan]), "samples that are not finite"),
    ],
)
def test_samples_that_are_no_sound_are_rejected(samples, words):
    with pytest.raises(NNNormError, match=words):
        read_sound(samples, RATE)


def test_a_file_that_is_no_sound_is_rejected(tmp_path):
    (tmp_path / "a.wav").write_text("no sound")
    with pytest.raises(NNNormError, match=r"a\.wav can't be read .*truncated, or not a sound"):
        read_sound(tmp_path / "a.wav", RATE)
    with pytest.raises(NNNormError, match="there is no such file"):
        read_sound(tmp_path / "none.wav", RATE)


def test_all_headers_are_looked_at_and_the_bad_ones_counted(tmp_path):
    soundfile.write(tmp_path / "a.wav", tone(RATE), RATE)
    (tmp_path / "b.wav").write_text("no sound")
    check_inputs([tmp_path / "a.wav"], "audio")
    words = r"b\.wav can't be read .*\(2 of 3 sounds can't be used\)"
    with pytest.raises(NNNormError, match=words):
        check_inputs([tmp_path / "a.wav", tmp_path / "b.wav", tmp_path / "none.wav"], "audio")
