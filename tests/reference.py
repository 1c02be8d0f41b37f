"""Naive implementations of each method in float64, to compare fast paths with.

`scores` is always (n_gallery, n_references); a bias is (n_gallery,). Nothing here is shared with
the package.
"""

import numpy as np


def m_k(scores, k):
    return -np.sort(-scores, axis=1)[:, :k].mean(axis=1)


def log_sum_exp(scores, beta):
    peak = (beta * scores).max(axis=1, keepdims=True)
    return (peak + np.log(np.exp(beta * scores - peak).sum(axis=1, keepdims=True)))[:, 0]


def nnn(scores, k, alpha):
    return alpha * m_k(scores, k)


def automatic_rule(gallery, past):
    """k, alpha and values of `NNN()` for unique past queries and at most 512 items."""
    n, n_items = len(past), len(gallery)
    k = max(1, min(max(min(max(n // 16, 8), 32), 3 * n // n_items), n // 2))
    centered = gallery - gallery.mean(axis=0)
    scores = centered @ past.T
    values = m_k(scores, k)
    if n < 2 or n_items < 3:
        return k, 0.0, values
    rng, found = np.random.default_rng(0), []
    for _ in range(8):
        order = rng.permutation(n)
        halves = (scores[:, rows] for rows in (order[: n // 2], order[n // 2 :]))
        found.append(np.corrcoef(*(m_k(half, max(1, k // 2)) for half in halves))[0, 1])
    reliability = 2 * np.mean(found) / (1 + np.mean(found)) if np.mean(found) > 0 else 0.0
    items = centered @ gallery.T
    others = np.where(np.eye(n_items), -np.inf, items)
    density = m_k(others, min(10, n_items - 1))
    spread = (values.std() / scores.std()) / (density.std() / items.std())
    first = scores.argmax(axis=0)[np.random.default_rng(0).permutation(n)]
    groups = [first[64 * g : 64 * g + 64] for g in range(max(1, min(16, n // 64)))]
    coverage = np.mean([_exp_entropy(group) / min(len(group), n_items) for group in groups])
    t = np.corrcoef(values, density)[0, 1] + np.log(coverage) / 4
    alpha = 0.6 * reliability**0.5 * n / (n + 16) * min(1, 1.25 / spread) ** 3
    return k, alpha * np.clip((t + 0.1) / 0.2, 0, 1), values


def two_level(values, plain, labels, alpha, between=1.0):
    """Alpha within groups, `between` between them; `plain` are the means without centering."""
    labels, means = np.asarray(labels), {}
    for label in set(labels.tolist()):
        own = labels == label
        means[label] = plain[own].mean(), values[own].mean(), own.sum()
    within = sum(((plain[labels == one] - mean[0]) ** 2).sum() for one, mean in means.items())
    deviation = np.sqrt(within / max(1, len(values) - len(means)))
    offsets = {}
    for label, (of_plain, of_values, n) in means.items():
        away = of_plain - plain.mean()
        is_own = n >= 3 and abs(away) > 3 * deviation / np.sqrt(n)
        differs = between * away - alpha * (of_values - values.mean())
        offsets[label] = differs if is_own else 0.0
    return alpha * values + np.array([offsets[label] for label in labels.tolist()])


def _exp_entropy(items):
    share = np.bincount(items) / len(items)
    share = share[share > 0]
    return np.exp(-(share * np.log(share)).sum())


def confidence(scores):
    """Of corrected scores (n_queries, n_items), or of the best of them; −inf is no hit."""
    found = []
    for row in scores.astype(float):
        best = sorted(row[row > -np.inf], reverse=True)[:10]
        found.append(best[0] - 0.8 * sum(best) / len(best) if best else -np.inf)
    return np.array(found)


def logistic_regression(values, labels):
    """Intercept and slope by plain gradient ascent on standardized values."""
    x, a, b = (values - values.mean()) / values.std(), 0.0, 0.0
    for _ in range(5000):
        left = labels - 1 / (1 + np.exp(-a - b * x))
        a, b = a + left.mean(), b + (left * x).mean()
    return a - b * values.mean() / values.std(), b / values.std()


def csls(queries, gallery, references, k):
    """The published form, with its query term: 2s − r(q) − r(item)."""
    similarity = queries @ gallery.T
    query_term = m_k(queries @ references.T, k)
    return 2 * similarity - query_term[:, None] - m_k(gallery @ references.T, k)[None, :]


def dn(queries, gallery, references, weight):
    """The published form: both sides lose their (weighted) means, no re-normalising."""
    query_mean, gallery_mean = references.mean(axis=0), gallery.mean(axis=0)
    return (queries - weight * query_mean) @ (gallery - weight * gallery_mean).T


def inverted_softmax(scores, beta):
    return log_sum_exp(scores, beta) / beta


def dual_softmax(scores, gallery_scores, beta_query, beta_gallery):
    both = log_sum_exp(gallery_scores, beta_gallery) + log_sum_exp(scores, beta_query)
    return both / (beta_query + beta_gallery)


def sinkhorn(scores, tau, iterations):
    """-τ·log u with cost 1 − s and uniform marginals; columns are balanced first."""
    n_rows, n_columns = scores.shape
    log_kernel = -(1 - scores) / tau
    log_u = np.full(n_rows, -np.log(n_rows))
    for _ in range(iterations):
        log_v = -np.log(n_columns) - log_sum_exp(log_kernel.T + log_u, 1.0)
        log_u = -np.log(n_rows) - log_sum_exp(log_kernel + log_v, 1.0)
    return -tau * log_u


def activation_set(scores):
    active = np.zeros(len(scores), dtype=bool)
    active[scores.argmax(axis=0)] = True
    return active


def dis(raw, scores, beta):
    """Gate on the raw scores, then the whole row is divided by the inverted softmax's sums."""
    active, out = activation_set(scores), raw.copy()
    for row in range(len(raw)):
        if active[raw[row].argmax()]:
            out[row] = np.exp(beta * raw[row]) / np.exp(beta * scores).sum(axis=1)
    return out


def dual_dis(raw, scores, gallery_scores, beta_query, beta_gallery):
    """As published: a product of two factors, the closed one being the raw score."""
    out = np.ones_like(raw)
    for bank, beta in ((scores, beta_query), (gallery_scores, beta_gallery)):
        active = activation_set(bank)
        for row in range(len(raw)):
            if active[raw[row].argmax()]:
                out[row] *= np.exp(beta * raw[row]) / np.exp(beta * bank).sum(axis=1)
            else:
                out[row] *= raw[row]
    return out


def rank(scores, k):
    """Best first, ties by the lower index."""
    return np.argsort(-scores, axis=1, kind="stable")[:, :k]


def same_up_to_a_constant(first, second, tolerance):
    difference = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    return np.ptp(difference) <= tolerance
