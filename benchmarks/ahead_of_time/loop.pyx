# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The same loop as in loop.c, in Cython: with pointers, since slices of memoryviews count references."""

from libc.math cimport INFINITY, NAN, exp, fabs, isfinite, isnan, log, sqrt
from libc.stdint cimport int64_t
from libc.string cimport memcpy, memset

cdef enum:
    MOST_K = 8
    MOST_Q = 4
    MOST_P = 256

cdef double LOG_2PI = 1.8378770664093453
ctypedef double* Out
ctypedef const double* In

ctypedef struct Model:
    int64_t K, Q, p_w, p_v, residual_size, averaging
    double squared_tail, log_integral, mix_a, mix_b, prior_strength, variance_floor, residual_weight
    int64_t *n
    int64_t *n_average
    Out decay, prior_weight, gate, gate_gram, gate_inverse, experts, variances, masses, grams, inverses
    Out average_gate, average_experts, average_variances
    Out prior_gate_gram, prior_expert_gram, prior_experts, prior_variances, residual


cdef inline double energy(const Model* m, double square) noexcept nogil:
    if square > m.squared_tail:
        return 0.5 * m.squared_tail * (1.0 + log(square / m.squared_tail))
    return 0.5 * square


cdef inline double irls_weight(const Model* m, double square) noexcept nogil:
    return m.squared_tail / square if square > m.squared_tail else 1.0


cdef inline bint is_outlier(const Model* m, double square) noexcept nogil:
    return square > m.squared_tail


cdef inline double dot(In a, In b, int64_t p) noexcept nogil:
    cdef int64_t j, blocked = p - p % 4
    cdef double t0 = 0.0, t1 = 0.0, t2 = 0.0, t3 = 0.0
    for j in range(0, blocked, 4):
        t0 += a[j] * b[j]
        t1 += a[j + 1] * b[j + 1]
        t2 += a[j + 2] * b[j + 2]
        t3 += a[j + 3] * b[j + 3]
    for j in range(blocked, p):
        t0 += a[j] * b[j]
    return (t0 + t1) + (t2 + t3)


cdef inline void add_rows(
    Out row, In weights, int64_t stride, double sign, In rows, int64_t p, int64_t first, int64_t stop, int64_t start,
    int64_t end,
) noexcept nogil:
    cdef int64_t j, k, blocked = stop - (stop - first) % 4
    cdef double a, b, c, d
    cdef In r
    for k in range(first, blocked, 4):
        a, b = sign * weights[k * stride], sign * weights[(k + 1) * stride]
        c, d = sign * weights[(k + 2) * stride], sign * weights[(k + 3) * stride]
        r = rows + k * p
        for j in range(start, end):
            row[j] = row[j] + a * r[j] + b * r[p + j] + c * r[2 * p + j] + d * r[3 * p + j]
    for k in range(blocked, stop):
        a = sign * weights[k * stride]
        for j in range(start, end):
            row[j] += a * rows[k * p + j]


cdef inline double symmetric_product(In matrix, In x, Out y, int64_t p) noexcept nogil:
    cdef int64_t i, j, blocked = p - p % 4
    cdef double a, b, c, d
    cdef In r
    for i in range(p):
        y[i] = 0.0
    for j in range(0, blocked, 4):
        a, b, c, d = x[j], x[j + 1], x[j + 2], x[j + 3]
        r = matrix + j * p
        for i in range(p):
            y[i] += a * r[i] + b * r[p + i] + c * r[2 * p + i] + d * r[3 * p + i]
    for j in range(blocked, p):
        a = x[j]
        for i in range(p):
            y[i] += a * matrix[j * p + i]
    return dot(x, y, p)


cdef inline void add_outer(Out matrix, In x, double weight, int64_t p) noexcept nogil:
    cdef int64_t i, j
    cdef double scaled
    for i in range(p):
        scaled = weight * x[i]
        for j in range(p):
            matrix[i * p + j] += scaled * x[j]


cdef double factor[MOST_P * MOST_P]


cdef void invert_spd(In matrix, Out inverse, int64_t p) noexcept nogil:
    cdef double row[MOST_P]
    cdef double scale[MOST_P]
    cdef double root, diagonal
    cdef int64_t i, j
    cdef Out own
    for i in range(p):
        scale[i] = 1.0 / sqrt(matrix[i * p + i]) if matrix[i * p + i] > 1e-100 else 1.0
    memset(factor, 0, sizeof(double) * p * p)
    for i in range(p):
        own = factor + i * p
        for j in range(i, p):
            own[j] = matrix[j * p + i] * scale[i] * scale[j]
        if not matrix[i * p + i] > 1e-100:
            own[i] = 1.0
        add_rows(own, factor + i, p, -1.0, factor, p, 0, i, i, p)
        root = sqrt(own[i])
        own[i] = root
        for j in range(i + 1, p):
            own[j] /= root
    for i in range(p - 1, -1, -1):
        own = factor + i * p
        diagonal = 1.0 / own[i]
        memset(row, 0, sizeof(double) * p)
        add_rows(row, own, 1, 1.0, factor, p, i + 1, p, i + 1, p)
        for j in range(i + 1, p):
            own[j] = -row[j] * diagonal
        own[i] = diagonal
    for i in range(p):
        for j in range(i):
            factor[i * p + j] = factor[j * p + i]
            factor[j * p + i] = 0.0
    memset(inverse, 0, sizeof(double) * p * p)
    for i in range(p):
        add_rows(inverse + i * p, factor + i, p, 1.0, factor, p, i, p, 0, i + 1)
    for i in range(p):
        for j in range(i + 1):
            inverse[i * p + j] = inverse[i * p + j] * scale[i] * scale[j]
            inverse[j * p + i] = inverse[i * p + j]


cdef inline double evaluate(
    const Model* m, In gate, In experts, In variances, In w, In r, In y, Out shares, Out means, Out tau, Out squares
) noexcept nogil:
    cdef int64_t k, q, K = m.K, Q = m.Q
    cdef double products[MOST_K]
    cdef double top, part, log_gate, square, product, error, total = 0.0, largest = -INFINITY
    for k in range(K - 1):
        tau[k] = dot(gate + k * m.p_w, w, m.p_w)
        shares[k] = tau[k]
    shares[K - 1] = tau[K - 1] = 0.0
    top = shares[0]
    for k in range(1, K):
        top = max(top, shares[k])
    for k in range(K):
        shares[k] = exp(shares[k] - top)
        total += shares[k]
    log_gate, part = top + log(total), 1.0 / total
    for k in range(K):
        shares[k] *= part
    for k in range(K * Q):
        means[k] = dot(experts + k * m.p_v, r, m.p_v)
    if isnan(y[0]):
        return NAN
    for k in range(K):
        square, product = 0.0, 1.0
        for q in range(Q):
            error = y[q] - means[k * Q + q]
            square += error * error / variances[k * Q + q]
            product *= variances[k * Q + q]
            if Q > 1 and not 1e-100 < product < 1e100:
                tau[k] -= 0.5 * log(product)
                product = 1.0
        products[k], squares[k] = product, square
        tau[k] -= energy(m, square)
        largest = max(largest, tau[k])
    total = 0.0
    for k in range(K):
        tau[k] = exp(tau[k] - largest) / sqrt(products[k])
        total += tau[k]
    part = 1.0 / total
    for k in range(K):
        tau[k] *= part
    return log_gate - largest - log(total) + (0.5 * Q * LOG_2PI + m.log_integral)


cdef inline double adaptive_weight(In shares, int64_t K) noexcept nogil:
    cdef double apart, largest = shares[0], rest = 0.0
    cdef int64_t k
    for k in range(1, K):
        if shares[k] > largest:
            rest += largest
            largest = shares[k]
        else:
            rest += shares[k]
    apart = largest - rest
    if apart <= 0.0:
        return 1.0
    return 1.0 - apart * apart / 3.0 if apart < 1e-4 else 2.0 * apart / log(largest / max(rest, 1e-300))


cdef inline int64_t enter(double entry, double share, Out residual, int64_t at, double* square) noexcept nogil:
    residual[at] += share * (entry - residual[at])
    square[0] += entry * entry
    return at + 1


cdef void track_residual(Model* m, double weight, In shares, In tau, In trusted, In w, In r, In y) noexcept nogil:
    cdef int64_t i, j, k, q, at = 0, K = m.K, Q = m.Q, last = m.residual_size - 1, p = m.p_w
    cdef Out residual = m.residual
    cdef In gram
    cdef In theta
    cdef double linear[MOST_K][MOST_P]
    cdef double share, bend, mix, entry, total, amount, stored, explained, own, square = 0.0, decay = m.decay[0]
    residual[last] += 1.0
    share = max(1.0 / residual[last], m.residual_weight)
    bend, mix = weight * adaptive_weight(shares, K), m.mix_b / (1.0 + m.mix_b * (K - 1))
    memset(linear, 0, sizeof(linear))
    for i in range(p):
        for j in range(p):
            entry = bend * w[i] * w[j] - decay * m.gate_gram[i * p + j]
            for k in range(K - 1):
                linear[k][i] += entry * m.gate[k * p + j]
            at = enter(entry, share, residual, at, &square)
    for i in range(p):
        total = 0.0
        for k in range(K - 1):
            total += linear[k][i]
        for k in range(K - 1):
            entry = weight * (shares[k] - tau[k]) * w[i] - (linear[k][i] - mix * total) / m.mix_a
            at = enter(entry, share, residual, at, &square)
    p = m.p_v
    for k in range(K):
        amount, gram, theta, own = weight * trusted[k], m.grams + k * p * p, m.experts + k * Q * p, 0.0
        memset(linear, 0, sizeof(linear))
        for i in range(p):
            for j in range(p):
                stored = decay * gram[i * p + j]
                for q in range(Q):
                    linear[q][i] += stored * theta[q * p + j]
                at = enter(amount * r[i] * r[j] - stored, share, residual, at, &own)
        for q in range(Q):
            for i in range(p):
                at = enter(amount * y[q] * r[i] - linear[q][i], share, residual, at, &own)
        square += own
        for q in range(Q):
            explained = 0.0
            for i in range(p):
                explained += linear[q][i] * theta[q * p + i]
            entry = amount * y[q] * y[q] - (m.masses[k] * m.variances[k * Q + q] + explained)
            at = enter(entry, share, residual, at, &square)
        at = enter(weight * tau[k] - m.masses[k], share, residual, at, &square)
    residual[last - 1] += share * (sqrt(square) - residual[last - 1])
    if not isfinite(residual[last - 1]):
        memset(residual, 0, sizeof(double) * m.residual_size)


cdef void top_up(In matrix_prior, double amount, double decay, Out gram, Out inverse, int64_t p) noexcept nogil:
    cdef int64_t i, j
    for i in range(p):
        for j in range(p):
            gram[i * p + j] *= decay
        gram[i * p + i] += amount * matrix_prior[i]
    invert_spd(gram, inverse, p)


cdef void refresh(Model* m, double prior_weight) noexcept nogil:
    cdef int64_t i, j, k, q, K = m.K, Q = m.Q, p_w = m.p_w, p = m.p_v
    cdef double missing = prior_weight - m.prior_weight[0], share = missing / K, spread, total
    cdef double pull[MOST_P]
    cdef double old[MOST_P]
    cdef Out inverse
    cdef Out variance
    cdef Out theta
    cdef In prior
    top_up(m.prior_gate_gram, missing, m.decay[0], m.gate_gram, m.gate_inverse, p_w)
    for k in range(K - 1):
        for j in range(p_w):
            pull[j] = -missing * m.prior_gate_gram[j] * m.gate[k * p_w + j]
        for j in range(p_w):
            for i in range(p_w):
                m.gate[k * p_w + i] += pull[j] * m.gate_inverse[j * p_w + i]
    for k in range(K):
        inverse, variance = m.inverses + k * p * p, m.variances + k * Q
        top_up(m.prior_expert_gram, share, m.decay[0], m.grams + k * p * p, inverse, p)
        if share <= 0.0:
            continue
        for q in range(Q):
            theta, prior, spread = m.experts + (k * Q + q) * p, m.prior_experts + q * p, 0.0
            memcpy(old, theta, sizeof(double) * p)
            for j in range(p):
                pull[j] = share * m.prior_expert_gram[j] * (prior[j] - theta[j])
            for j in range(p):
                for i in range(p):
                    theta[i] += pull[j] * inverse[j * p + i]
            for j in range(p):
                spread += share * m.prior_expert_gram[j] * (prior[j] - theta[j]) * (prior[j] - old[j])
            total = m.masses[k] * variance[q] + share * m.prior_variances[q] + max(spread, 0.0)
            variance[q] = total / (m.masses[k] + share)
        m.masses[k] += share
    m.prior_weight[0] = prior_weight
    m.decay[0] = 1.0


cdef inline void step_gate(Model* m, double amount, In shares, In tau, In w, Out gain) noexcept nogil:
    cdef int64_t j, k, K = m.K, p = m.p_w
    cdef double step, total = 0.0, weight = amount * adaptive_weight(shares, K)
    cdef double shrink = 1.0 / (1.0 + weight * symmetric_product(m.gate_inverse, w, gain, p))
    cdef Out own
    add_outer(m.gate_inverse, gain, -weight * shrink, p)
    add_outer(m.gate_gram, w, weight, p)
    for k in range(K - 1):
        total += shares[k] - tau[k]
    for k in range(K - 1):
        step, own = amount * shrink * m.mix_a * (shares[k] - tau[k] + m.mix_b * total), m.gate + k * p
        for j in range(p):
            own[j] -= step * gain[j]


cdef inline void step_experts(
    Model* m, double keep, double fresh, double amount, In tau, In trusted, In means, In r, In y, Out gain
) noexcept nogil:
    cdef int64_t j, k, q, K = m.K, Q = m.Q, p = m.p_v
    cdef double old, mass, weight, shrink, error, push, value
    cdef Out own
    for k in range(K):
        old = keep * m.masses[k]
        mass = max(old + fresh * tau[k], 1e-100)
        m.masses[k] = mass
        if tau[k] == 0.0:
            continue
        weight = amount * trusted[k]
        shrink = 1.0 / (1.0 + weight * symmetric_product(m.inverses + k * p * p, r, gain, p))
        for q in range(k * Q, (k + 1) * Q):
            error = y[q - k * Q] - means[q]
            push = weight * shrink * error
            value = (old * m.variances[q] + fresh * trusted[k] * error * error * shrink) / mass
            m.variances[q] = max(value, m.variance_floor * m.prior_variances[q - k * Q])
            own = m.experts + q * p
            for j in range(p):
                own[j] += push * gain[j]
        add_outer(m.inverses + k * p * p, gain, -weight * shrink, p)
        add_outer(m.grams + k * p * p, r, weight, p)


cdef inline void blend(Out average, In raw, double weight, int64_t n) noexcept nogil:
    cdef int64_t i
    if weight >= 1.0:
        memcpy(average, raw, sizeof(double) * n)
        return
    for i in range(n):
        average[i] += weight * (raw[i] - average[i])


cdef bint are_finite(In values, int64_t n, int64_t step) noexcept nogil:
    cdef int64_t i
    for i in range(n):
        if not isfinite(values[i * step]):
            return False
    return True


cdef bint is_sound(const Model* m) noexcept nogil:
    cdef int64_t k, K = m.K, Q = m.Q, p_w = m.p_w, p = m.p_v
    for k in range(K):
        if not are_finite(m.grams + k * p * p, p, p + 1) or not are_finite(m.inverses + k * p * p, p, p + 1):
            return False
    return (
        are_finite(m.gate, (K - 1) * p_w, 1) and are_finite(m.experts, K * Q * p, 1)
        and are_finite(m.variances, K * Q, 1) and are_finite(m.masses, K, 1) and isfinite(m.decay[0])
        and are_finite(m.average_gate, (K - 1) * p_w, 1) and are_finite(m.average_experts, K * Q * p, 1)
        and are_finite(m.average_variances, K * Q, 1) and isfinite(m.prior_weight[0])
        and are_finite(m.gate_gram, p_w, p_w + 1) and are_finite(m.gate_inverse, p_w, p_w + 1)
    )


cdef int64_t learn(
    Model* m, int64_t n, In gammas, In weights, In W, In R, In Y, Out losses, Out predictions
) noexcept nogil:
    cdef int64_t i, k, q, K = m.K, Q = m.Q, learned = 0, outliers = 0
    cdef double shares[MOST_K]
    cdef double tau[MOST_K]
    cdef double trusted[MOST_K]
    cdef double squares[MOST_K]
    cdef double means[MOST_K * MOST_Q]
    cdef double gain[MOST_P]
    cdef double total, gamma, beyond, keep, decay, fresh, amount, weight
    cdef In w
    cdef In r
    cdef In y
    for i in range(n):
        w, r, y = W + i * m.p_w, R + i * m.p_v, Y + i * Q
        losses[i] = evaluate(
            m, m.average_gate, m.average_experts, m.average_variances, w, r, y, shares, means, tau, squares
        )
        for q in range(Q):
            total = 0.0
            for k in range(K):
                total += shares[k] * means[k * Q + q]
            predictions[i * Q + q] = total
        if isnan(y[0]):
            continue
        gamma = gammas[learned]
        learned += 1
        evaluate(m, m.gate, m.experts, m.variances, w, r, y, shares, means, tau, squares)
        beyond = 0.0
        for k in range(K):
            if is_outlier(m, squares[k]):
                if tau[k] < 1e-18:
                    tau[k] = 0.0
                beyond += tau[k]
            trusted[k] = tau[k] * irls_weight(m, squares[k])
        outliers += beyond > 0.5
        if m.n[0] % 64 == 0:
            track_residual(m, weights[i], shares, tau, trusted, w, r, y)
        keep = 1.0 - gamma
        decay, fresh = m.decay[0] * keep, gamma * weights[i]
        amount = fresh / decay
        step_gate(m, amount, shares, tau, w, gain)
        step_experts(m, keep, fresh, amount, tau, trusted, means, r, y, gain)
        m.n[0] += 1
        m.decay[0] = decay
        m.prior_weight[0] *= keep
        if decay < 0.5:
            refresh(m, max(m.prior_weight[0], m.prior_strength * gamma))
        m.n_average[0] += 1
        weight = m.averaging / (m.n_average[0] + m.averaging - 1.0)
        blend(m.average_gate, m.gate, weight, (K - 1) * m.p_w)
        blend(m.average_experts, m.experts, weight, K * Q * m.p_v)
        blend(m.average_variances, m.variances, weight, K * Q)
    for i in range(n):
        if not (fabs(losses[i]) <= 1e200 or isnan(Y[i * Q])) or not fabs(predictions[i * Q]) <= 1e100:
            return -1
    return outliers if is_sound(m) else -1


def learn_rows(
    size_t model,
    const double[::1] gammas,
    const double[::1] weights,
    const double[:, ::1] W,
    const double[:, ::1] R,
    const double[:, ::1] Y,
    double[::1] losses,
    double[:, ::1] predictions,
):
    cdef int64_t found
    with nogil:
        found = learn(
            <Model*>model, W.shape[0], &gammas[0], &weights[0], &W[0, 0], &R[0, 0], &Y[0, 0], &losses[0],
            &predictions[0, 0],
        )
    return found
