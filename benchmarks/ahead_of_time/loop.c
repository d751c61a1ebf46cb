/* The loop of a Gaussian mixture, as streammoe/kernels/loop.py has it for default options, to measure a compiler by.

Every sum runs in the order of the kernels. Left out: groups, traces, latest predictions, top_k, other curvatures than
the adaptive bound, and the damping of singular matrices. With -DMODULE it is a module of Python as well. */
#ifdef MODULE
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>
#endif
#include <math.h>
#include <stdint.h>
#include <string.h>

#define LOG_2PI 1.8378770664093453
#define NEGLIGIBLE 1e-18
#define VANISHED 1e-100
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))
enum { MOST_K = 8, MOST_Q = 4, MOST_P = 256, UNSOUND = -1 };
typedef double *restrict out;
typedef const double *restrict in;

typedef struct {
    int64_t K, Q, p_w, p_v, residual_size, averaging;
    double squared_tail, log_integral, mix_a, mix_b, prior_strength, variance_floor, residual_weight;
    int64_t *n, *n_average;
    double *decay, *prior_weight, *gate, *gate_gram, *gate_inverse, *experts, *variances, *masses, *grams, *inverses;
    double *average_gate, *average_experts, *average_variances;
    double *prior_gate_gram, *prior_expert_gram, *prior_experts, *prior_variances, *residual;
} Model;

/* The noise; another family has other functions here. */
static inline double energy(const Model *m, double square) {
    if (square > m->squared_tail) return 0.5 * m->squared_tail * (1.0 + log(square / m->squared_tail));
    return 0.5 * square;
}
static inline double irls_weight(const Model *m, double square) {
    return square > m->squared_tail ? m->squared_tail / square : 1.0;
}
static inline int is_outlier(const Model *m, double square) { return square > m->squared_tail; }

static inline double dot(in a, in b, int64_t p) {
    double t[4] = {0.0, 0.0, 0.0, 0.0};
    int64_t j = 0;
    for (; j + 4 <= p; j += 4)
        for (int c = 0; c < 4; c++) t[c] += a[j + c] * b[j + c];
    for (; j < p; j++) t[0] += a[j] * b[j];
    return (t[0] + t[1]) + (t[2] + t[3]);
}

/* row[j] += sum of weights[k * stride] * rows[k][j], k after k, four of them in a sweep. */
static inline void add_rows(out row, in weights, int64_t stride, double sign, in rows, int64_t p, int64_t k,
                            int64_t stop, int64_t from, int64_t to) {
    for (; k + 4 <= stop; k += 4) {
        const double a = sign * weights[k * stride], b = sign * weights[(k + 1) * stride];
        const double c = sign * weights[(k + 2) * stride], d = sign * weights[(k + 3) * stride];
        in r = rows + k * p;
        for (int64_t j = from; j < to; j++)
            row[j] = row[j] + a * r[j] + b * r[p + j] + c * r[2 * p + j] + d * r[3 * p + j];
    }
    for (; k < stop; k++) {
        const double a = sign * weights[k * stride];
        for (int64_t j = from; j < to; j++) row[j] += a * rows[k * p + j];
    }
}

static inline double symmetric_product(in matrix, in x, out y, int64_t p) {
    int64_t j = 0;
    for (int64_t i = 0; i < p; i++) y[i] = 0.0;
    for (; j + 4 <= p; j += 4) {
        in r = matrix + j * p;
        const double a = x[j], b = x[j + 1], c = x[j + 2], d = x[j + 3];
        for (int64_t i = 0; i < p; i++) y[i] += a * r[i] + b * r[p + i] + c * r[2 * p + i] + d * r[3 * p + i];
    }
    for (; j < p; j++)
        for (int64_t i = 0; i < p; i++) y[i] += x[j] * matrix[j * p + i];
    return dot(x, y, p);
}

static inline void add_outer(out matrix, in x, double weight, int64_t p) {
    for (int64_t i = 0; i < p; i++) {
        const double scaled = weight * x[i];
        for (int64_t j = 0; j < p; j++) matrix[i * p + j] += scaled * x[j];
    }
}

static void invert_spd(in matrix, out inverse, int64_t p) {
    static _Thread_local double factor[MOST_P * MOST_P], row[MOST_P], scale[MOST_P];
    for (int64_t i = 0; i < p; i++) scale[i] = matrix[i * p + i] > VANISHED ? 1.0 / sqrt(matrix[i * p + i]) : 1.0;
    memset(factor, 0, sizeof(double) * p * p);
    for (int64_t i = 0; i < p; i++) {
        out own = factor + i * p;
        for (int64_t j = i; j < p; j++) own[j] = matrix[j * p + i] * scale[i] * scale[j];
        if (!(matrix[i * p + i] > VANISHED)) own[i] = 1.0;
        add_rows(own, factor + i, p, -1.0, factor, p, 0, i, i, p);
        const double root = sqrt(own[i]);
        own[i] = root;
        for (int64_t j = i + 1; j < p; j++) own[j] /= root;
    }
    for (int64_t i = p - 1; i >= 0; i--) {
        out own = factor + i * p;
        const double diagonal = 1.0 / own[i];
        memset(row, 0, sizeof(double) * p);
        add_rows(row, own, 1, 1.0, factor, p, i + 1, p, i + 1, p);
        for (int64_t j = i + 1; j < p; j++) own[j] = -row[j] * diagonal;
        own[i] = diagonal;
    }
    for (int64_t i = 0; i < p; i++)
        for (int64_t j = 0; j < i; j++) factor[i * p + j] = factor[j * p + i], factor[j * p + i] = 0.0;
    memset(inverse, 0, sizeof(double) * p * p);
    for (int64_t i = 0; i < p; i++) add_rows(inverse + i * p, factor + i, p, 1.0, factor, p, i, p, 0, i + 1);
    for (int64_t i = 0; i < p; i++)
        for (int64_t j = 0; j <= i; j++)
            inverse[i * p + j] = inverse[j * p + i] = inverse[i * p + j] * scale[i] * scale[j];
}

static inline double evaluate(const Model *m, in gate, in experts, in variances, in w, in r, in y, out shares,
                              out means, out tau, out squares) {
    const int64_t K = m->K, Q = m->Q;
    for (int64_t k = 0; k < K - 1; k++) shares[k] = tau[k] = dot(gate + k * m->p_w, w, m->p_w);
    shares[K - 1] = tau[K - 1] = 0.0;
    double top = shares[0], total = 0.0, largest = -INFINITY, products[MOST_K];
    for (int64_t k = 1; k < K; k++) top = MAX(top, shares[k]);
    for (int64_t k = 0; k < K; k++) total += shares[k] = exp(shares[k] - top);
    const double log_gate = top + log(total), part = 1.0 / total;
    for (int64_t k = 0; k < K; k++) shares[k] *= part;
    for (int64_t k = 0; k < K * Q; k++) means[k] = dot(experts + k * m->p_v, r, m->p_v);
    if (isnan(y[0])) return NAN;
    for (int64_t k = 0; k < K; k++) {
        double square = 0.0, product = 1.0;
        for (int64_t q = 0; q < Q; q++) {
            const double error = y[q] - means[k * Q + q];
            square += error * error / variances[k * Q + q];
            product *= variances[k * Q + q];
            if (Q > 1 && !(1e-100 < product && product < 1e100)) tau[k] -= 0.5 * log(product), product = 1.0;
        }
        products[k] = product;
        squares[k] = square;
        tau[k] -= energy(m, square);
        largest = MAX(largest, tau[k]);
    }
    total = 0.0;
    for (int64_t k = 0; k < K; k++) total += tau[k] = exp(tau[k] - largest) / sqrt(products[k]);
    for (int64_t k = 0; k < K; k++) tau[k] *= 1.0 / total;
    return log_gate - largest - log(total) + (0.5 * Q * LOG_2PI + m->log_integral);
}

static inline double adaptive_weight(in shares, int64_t K) {
    double largest = shares[0], rest = 0.0;
    for (int64_t k = 1; k < K; k++)
        if (shares[k] > largest) rest += largest, largest = shares[k];
        else rest += shares[k];
    const double apart = largest - rest;
    if (apart <= 0.0) return 1.0;
    return apart < 1e-4 ? 1.0 - apart * apart / 3.0 : 2.0 * apart / log(largest / MAX(rest, 1e-300));
}

static inline int64_t enter(double entry, double share, double *residual, int64_t at, double *square) {
    residual[at] += share * (entry - residual[at]);
    *square += entry * entry;
    return at + 1;
}

static void track_residual(Model *m, double weight, in shares, in tau, in trusted, in w, in r, in y) {
    const int64_t K = m->K, Q = m->Q, last = m->residual_size - 1;
    double *const residual = m->residual, decay = *m->decay, linear[MAX(MOST_K, MOST_Q)][MOST_P];
    residual[last] += 1.0;
    const double share = MAX(1.0 / residual[last], m->residual_weight);
    const double bend = weight * adaptive_weight(shares, K), mix = m->mix_b / (1.0 + m->mix_b * (K - 1));
    double square = 0.0;
    int64_t at = 0, p = m->p_w;
    memset(linear, 0, sizeof linear);
    for (int64_t i = 0; i < p; i++)
        for (int64_t j = 0; j < p; j++) {
            const double entry = bend * w[i] * w[j] - decay * m->gate_gram[i * p + j];
            for (int64_t k = 0; k < K - 1; k++) linear[k][i] += entry * m->gate[k * p + j];
            at = enter(entry, share, residual, at, &square);
        }
    for (int64_t i = 0; i < p; i++) {
        double total = 0.0;
        for (int64_t k = 0; k < K - 1; k++) total += linear[k][i];
        for (int64_t k = 0; k < K - 1; k++) {
            const double bent = (linear[k][i] - mix * total) / m->mix_a;
            at = enter(weight * (shares[k] - tau[k]) * w[i] - bent, share, residual, at, &square);
        }
    }
    p = m->p_v;
    for (int64_t k = 0; k < K; k++) {
        const double amount = weight * trusted[k], *gram = m->grams + k * p * p, *theta = m->experts + k * Q * p;
        double own = 0.0;
        memset(linear, 0, sizeof linear);
        for (int64_t i = 0; i < p; i++)
            for (int64_t j = 0; j < p; j++) {
                const double stored = decay * gram[i * p + j];
                for (int64_t q = 0; q < Q; q++) linear[q][i] += stored * theta[q * p + j];
                at = enter(amount * r[i] * r[j] - stored, share, residual, at, &own);
            }
        for (int64_t q = 0; q < Q; q++)
            for (int64_t i = 0; i < p; i++)
                at = enter(amount * y[q] * r[i] - linear[q][i], share, residual, at, &own);
        square += own;
        for (int64_t q = 0; q < Q; q++) {
            double explained = 0.0;
            for (int64_t i = 0; i < p; i++) explained += linear[q][i] * theta[q * p + i];
            const double left = m->masses[k] * m->variances[k * Q + q] + explained;
            at = enter(amount * y[q] * y[q] - left, share, residual, at, &square);
        }
        at = enter(weight * tau[k] - m->masses[k], share, residual, at, &square);
    }
    residual[last - 1] += share * (sqrt(square) - residual[last - 1]);
    if (!isfinite(residual[last - 1])) memset(residual, 0, sizeof(double) * m->residual_size);
}

static void top_up(in matrix_prior, double amount, double decay, out gram, out inverse, int64_t p) {
    for (int64_t i = 0; i < p; i++) {
        for (int64_t j = 0; j < p; j++) gram[i * p + j] *= decay;
        gram[i * p + i] += amount * matrix_prior[i];
    }
    invert_spd(gram, inverse, p);
}

static void refresh(Model *m, double prior_weight) {
    const int64_t K = m->K, Q = m->Q, p_w = m->p_w, p = m->p_v;
    const double missing = prior_weight - *m->prior_weight, share = missing / K;
    double pull[MOST_P], old[MOST_P];
    top_up(m->prior_gate_gram, missing, *m->decay, m->gate_gram, m->gate_inverse, p_w);
    for (int64_t k = 0; k < K - 1; k++) {
        for (int64_t j = 0; j < p_w; j++) pull[j] = -missing * m->prior_gate_gram[j] * m->gate[k * p_w + j];
        for (int64_t j = 0; j < p_w; j++)
            for (int64_t i = 0; i < p_w; i++) m->gate[k * p_w + i] += pull[j] * m->gate_inverse[j * p_w + i];
    }
    for (int64_t k = 0; k < K; k++) {
        double *inverse = m->inverses + k * p * p, *variance = m->variances + k * Q;
        top_up(m->prior_expert_gram, share, *m->decay, m->grams + k * p * p, inverse, p);
        if (share <= 0.0) continue;
        for (int64_t q = 0; q < Q; q++) {
            double *theta = m->experts + (k * Q + q) * p, *prior = m->prior_experts + q * p, spread = 0.0;
            memcpy(old, theta, sizeof(double) * p);
            for (int64_t j = 0; j < p; j++) pull[j] = share * m->prior_expert_gram[j] * (prior[j] - theta[j]);
            for (int64_t j = 0; j < p; j++)
                for (int64_t i = 0; i < p; i++) theta[i] += pull[j] * inverse[j * p + i];
            for (int64_t j = 0; j < p; j++)
                spread += share * m->prior_expert_gram[j] * (prior[j] - theta[j]) * (prior[j] - old[j]);
            const double total = m->masses[k] * variance[q] + share * m->prior_variances[q] + MAX(spread, 0.0);
            variance[q] = total / (m->masses[k] + share);
        }
        m->masses[k] += share;
    }
    *m->prior_weight = prior_weight;
    *m->decay = 1.0;
}

static inline void step_gate(Model *m, double amount, in shares, in tau, in w, out gain) {
    const int64_t K = m->K, p = m->p_w;
    const double weight = amount * adaptive_weight(shares, K);
    const double shrink = 1.0 / (1.0 + weight * symmetric_product(m->gate_inverse, w, gain, p));
    double total = 0.0;
    add_outer(m->gate_inverse, gain, -weight * shrink, p);
    add_outer(m->gate_gram, w, weight, p);
    for (int64_t k = 0; k < K - 1; k++) total += shares[k] - tau[k];
    for (int64_t k = 0; k < K - 1; k++) {
        const double step = amount * shrink * m->mix_a * (shares[k] - tau[k] + m->mix_b * total);
        out own = m->gate + k * p;
        for (int64_t j = 0; j < p; j++) own[j] -= step * gain[j];
    }
}

static inline void step_experts(Model *m, double keep, double fresh, double amount, in tau, in trusted, in means, in r,
                                in y, out gain) {
    const int64_t K = m->K, Q = m->Q, p = m->p_v;
    for (int64_t k = 0; k < K; k++) {
        const double old = keep * m->masses[k];
        const double mass = m->masses[k] = MAX(old + fresh * tau[k], VANISHED);
        if (tau[k] == 0.0) continue;
        const double weight = amount * trusted[k];
        const double shrink = 1.0 / (1.0 + weight * symmetric_product(m->inverses + k * p * p, r, gain, p));
        for (int64_t q = k * Q; q < (k + 1) * Q; q++) {
            const double error = y[q - k * Q] - means[q], push = weight * shrink * error;
            const double value = (old * m->variances[q] + fresh * trusted[k] * error * error * shrink) / mass;
            m->variances[q] = MAX(value, m->variance_floor * m->prior_variances[q - k * Q]);
            out own = m->experts + q * p;
            for (int64_t j = 0; j < p; j++) own[j] += push * gain[j];
        }
        add_outer(m->inverses + k * p * p, gain, -weight * shrink, p);
        add_outer(m->grams + k * p * p, r, weight, p);
    }
}

static inline void blend(out average, in raw, double weight, int64_t n) {
    if (weight >= 1.0) memcpy(average, raw, sizeof(double) * n);
    else
        for (int64_t i = 0; i < n; i++) average[i] += weight * (raw[i] - average[i]);
}

static int are_finite(in values, int64_t n, int64_t step) {
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(values[i * step])) return 0;
    return 1;
}

static int is_sound(const Model *m) {
    const int64_t K = m->K, Q = m->Q, p_w = m->p_w, p = m->p_v;
    int sound = are_finite(m->gate, (K - 1) * p_w, 1) && are_finite(m->experts, K * Q * p, 1);
    sound = sound && are_finite(m->variances, K * Q, 1) && are_finite(m->masses, K, 1) && isfinite(*m->decay);
    sound = sound && are_finite(m->average_gate, (K - 1) * p_w, 1) && are_finite(m->average_experts, K * Q * p, 1);
    sound = sound && are_finite(m->average_variances, K * Q, 1) && isfinite(*m->prior_weight);
    sound = sound && are_finite(m->gate_gram, p_w, p_w + 1) && are_finite(m->gate_inverse, p_w, p_w + 1);
    for (int64_t k = 0; k < K; k++)
        sound = sound && are_finite(m->grams + k * p * p, p, p + 1) && are_finite(m->inverses + k * p * p, p, p + 1);
    return sound;
}

int64_t learn_rows(Model *m, int64_t n, in gammas, in weights, in W, in R, in Y, out losses, out predictions) {
    const int64_t K = m->K, Q = m->Q;
    double shares[MOST_K], tau[MOST_K], trusted[MOST_K], squares[MOST_K], means[MOST_K * MOST_Q], gain[MOST_P];
    int64_t learned = 0, outliers = 0;
    for (int64_t i = 0; i < n; i++) {
        in w = W + i * m->p_w, r = R + i * m->p_v, y = Y + i * Q;
        losses[i] = evaluate(m, m->average_gate, m->average_experts, m->average_variances, w, r, y, shares, means, tau,
                             squares);
        for (int64_t q = 0; q < Q; q++) {
            double total = 0.0;
            for (int64_t k = 0; k < K; k++) total += shares[k] * means[k * Q + q];
            predictions[i * Q + q] = total;
        }
        if (isnan(y[0])) continue;
        const double gamma = gammas[learned++];
        evaluate(m, m->gate, m->experts, m->variances, w, r, y, shares, means, tau, squares);
        double beyond = 0.0;
        for (int64_t k = 0; k < K; k++) {
            if (is_outlier(m, squares[k])) {
                if (tau[k] < NEGLIGIBLE) tau[k] = 0.0;
                beyond += tau[k];
            }
            trusted[k] = tau[k] * irls_weight(m, squares[k]);
        }
        outliers += beyond > 0.5;
        if (*m->n % 64 == 0) track_residual(m, weights[i], shares, tau, trusted, w, r, y);
        const double keep = 1.0 - gamma, decay = *m->decay * keep, fresh = gamma * weights[i], amount = fresh / decay;
        step_gate(m, amount, shares, tau, w, gain);
        step_experts(m, keep, fresh, amount, tau, trusted, means, r, y, gain);
        ++*m->n;
        *m->decay = decay;
        *m->prior_weight *= keep;
        if (decay < 0.5) refresh(m, MAX(*m->prior_weight, m->prior_strength * gamma));
        const double weight = m->averaging / (++*m->n_average + m->averaging - 1.0);
        blend(m->average_gate, m->gate, weight, (K - 1) * m->p_w);
        blend(m->average_experts, m->experts, weight, K * Q * m->p_v);
        blend(m->average_variances, m->variances, weight, K * Q);
    }
    int sound = is_sound(m);
    for (int64_t i = 0; i < n; i++)
        sound = sound && (fabs(losses[i]) <= 1e200 || isnan(Y[i * Q])) && fabs(predictions[i * Q]) <= 1e100;
    return sound ? outliers : UNSOUND;
}

#ifdef MODULE
/* learn_rows(address of a Model, gammas, weights, W, R, Y, losses, predictions): arrays by the buffer protocol. */
static PyObject *py_learn_rows(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
    Py_buffer views[7];
    int held = 0;
    PyObject *result = NULL;
    Model *m = count == 8 ? PyLong_AsVoidPtr(arguments[0]) : NULL;
    if (m == NULL) return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "learn_rows takes 8 arguments");
    for (; held < 7; held++)
        if (PyObject_GetBuffer(arguments[held + 1], views + held, held < 5 ? PyBUF_SIMPLE : PyBUF_WRITABLE)) goto end;
    const int64_t n = views[2].len / (int64_t)sizeof(double) / m->p_w;
    int64_t found;
    Py_BEGIN_ALLOW_THREADS
    found = learn_rows(m, n, views[0].buf, views[1].buf, views[2].buf, views[3].buf, views[4].buf, views[5].buf,
                       views[6].buf);
    Py_END_ALLOW_THREADS
    result = PyLong_FromLongLong(found);
end:
    while (held > 0) PyBuffer_Release(views + --held);
    return result;
}

/* learn_dict(address of a Model, names, dict, target, gamma) -> prediction: values as they are, after an intercept. */
static PyObject *py_learn_dict(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
    double row[MOST_P] = {1.0}, loss, prediction[MOST_Q], weight = 1.0;
    Model *m = count == 5 ? PyLong_AsVoidPtr(arguments[0]) : NULL;
    if (m == NULL) return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "learn_dict takes 5 arguments");
    const Py_ssize_t n_names = PyTuple_Size(arguments[1]);
    for (Py_ssize_t j = 0; j < n_names; j++) {
        PyObject *value = PyDict_GetItemWithError(arguments[2], PyTuple_GetItem(arguments[1], j));
        row[j + 1] = value ? PyFloat_AsDouble(value) : NAN;
        if (!isfinite(row[j + 1])) return PyErr_Format(PyExc_ValueError, "not a finite number");
    }
    const double y = PyFloat_AsDouble(arguments[3]), gamma = PyFloat_AsDouble(arguments[4]);
    if (PyErr_Occurred()) return NULL;
    learn_rows(m, 1, &gamma, &weight, row, row, &y, &loss, prediction);
    return PyFloat_FromDouble(prediction[0]);
}

static PyMethodDef methods[] = {{"learn_rows", (PyCFunction)(void (*)(void))py_learn_rows, METH_FASTCALL, NULL},
                                {"learn_dict", (PyCFunction)(void (*)(void))py_learn_dict, METH_FASTCALL, NULL},
                                {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "loop", NULL, -1, methods, NULL, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit_loop(void) { return PyModule_Create(&module); }
#endif
