//! The same loop as in loop.c, in Rust: safe slices inside, made from pointers where it is called.
//! Its noise is a trait, of which the loop is compiled for each implementation.
use std::slice::{from_raw_parts, from_raw_parts_mut};

const MOST_K: usize = 8;
const MOST_Q: usize = 4;
const MOST_P: usize = 256;
const LOG_2PI: f64 = 1.8378770664093453;

#[repr(C)]
pub struct Model {
    sizes: [i64; 6],
    numbers: [f64; 7],
    n: *mut i64,
    n_average: *mut i64,
    arrays: [*mut f64; 18],
}

trait Noise {
    fn energy(&self, square: f64) -> f64;
    fn irls_weight(&self, square: f64) -> f64;
    fn is_outlier(&self, square: f64) -> bool;
}

struct Gaussian {
    squared_tail: f64,
}

impl Noise for Gaussian {
    #[inline(always)]
    fn energy(&self, square: f64) -> f64 {
        if square > self.squared_tail {
            return 0.5 * self.squared_tail * (1.0 + (square / self.squared_tail).ln());
        }
        0.5 * square
    }
    #[inline(always)]
    fn irls_weight(&self, square: f64) -> f64 {
        if square > self.squared_tail { self.squared_tail / square } else { 1.0 }
    }
    #[inline(always)]
    fn is_outlier(&self, square: f64) -> bool {
        square > self.squared_tail
    }
}

struct Sizes {
    k: usize,
    q: usize,
    p_w: usize,
    p_v: usize,
}

struct State<'a> {
    n: &'a mut i64,
    n_average: &'a mut i64,
    decay: &'a mut f64,
    prior_weight: &'a mut f64,
    gate: &'a mut [f64],
    gate_gram: &'a mut [f64],
    gate_inverse: &'a mut [f64],
    experts: &'a mut [f64],
    variances: &'a mut [f64],
    masses: &'a mut [f64],
    grams: &'a mut [f64],
    inverses: &'a mut [f64],
    average_gate: &'a mut [f64],
    average_experts: &'a mut [f64],
    average_variances: &'a mut [f64],
    prior_gate_gram: &'a [f64],
    prior_expert_gram: &'a [f64],
    prior_experts: &'a [f64],
    prior_variances: &'a [f64],
    residual: &'a mut [f64],
}

#[inline(always)]
fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut t = [0.0; 4];
    let (fours, others) = (a.chunks_exact(4), b.chunks_exact(4));
    let (rest, other_rest) = (fours.remainder(), others.remainder());
    for (x, y) in fours.zip(others) {
        for c in 0..4 {
            t[c] += x[c] * y[c];
        }
    }
    for (x, y) in rest.iter().zip(other_rest) {
        t[0] += x * y;
    }
    (t[0] + t[1]) + (t[2] + t[3])
}

/// Four rows of a matrix from row `k` on, at columns `from` to `to`.
#[inline(always)]
fn four(rows: &[f64], p: usize, k: usize, from: usize, to: usize) -> [&[f64]; 4] {
    [0, 1, 2, 3].map(|c| &rows[(k + c) * p + from..(k + c) * p + to])
}

#[inline(always)]
fn add_rows(row: &mut [f64], weight: impl Fn(usize) -> f64, rows: &[f64], p: usize, first: usize, stop: usize, from: usize) {
    let (mut k, to) = (first, from + row.len());
    while k + 4 <= stop {
        let (w, [a, b, c, d]) = ([0, 1, 2, 3].map(|c| weight(k + c)), four(rows, p, k, from, to));
        for ((((x, a), b), c), d) in row.iter_mut().zip(a).zip(b).zip(c).zip(d) {
            *x = *x + w[0] * a + w[1] * b + w[2] * c + w[3] * d;
        }
        k += 4;
    }
    for k in k..stop {
        let w = weight(k);
        for (x, a) in row.iter_mut().zip(&rows[k * p + from..k * p + to]) {
            *x += w * a;
        }
    }
}

#[inline(always)]
fn symmetric_product(matrix: &[f64], x: &[f64], y: &mut [f64]) -> f64 {
    let p = x.len();
    let y = &mut y[..p];
    y.fill(0.0);
    let mut j = 0;
    while j + 4 <= p {
        let [a, b, c, d] = four(matrix, p, j, 0, p);
        for ((((y, a), b), c), d) in y.iter_mut().zip(a).zip(b).zip(c).zip(d) {
            *y += x[j] * a + x[j + 1] * b + x[j + 2] * c + x[j + 3] * d;
        }
        j += 4;
    }
    for j in j..p {
        for (y, a) in y.iter_mut().zip(&matrix[j * p..(j + 1) * p]) {
            *y += x[j] * a;
        }
    }
    dot(x, y)
}

#[inline(always)]
fn add_outer(matrix: &mut [f64], x: &[f64], weight: f64) {
    for (row, xi) in matrix.chunks_exact_mut(x.len()).zip(x) {
        let scaled = weight * xi;
        for (m, xj) in row.iter_mut().zip(x) {
            *m += scaled * xj;
        }
    }
}

fn invert_spd(matrix: &[f64], inverse: &mut [f64], p: usize) {
    let mut factor = vec![0.0; p * p];
    let (mut row, mut scale) = ([0.0; MOST_P], [0.0; MOST_P]);
    for i in 0..p {
        let entry = matrix[i * p + i];
        scale[i] = if entry > 1e-100 { 1.0 / entry.sqrt() } else { 1.0 };
    }
    for i in 0..p {
        let (before, own) = factor.split_at_mut(i * p);
        let own = &mut own[i..p];
        for j in i..p {
            own[j - i] = matrix[j * p + i] * scale[i] * scale[j];
        }
        if !(matrix[i * p + i] > 1e-100) {
            own[0] = 1.0;
        }
        add_rows(own, |k| -before[k * p + i], before, p, 0, i, i);
        let root = own[0].sqrt();
        own[0] = root;
        for x in &mut own[1..] {
            *x /= root;
        }
    }
    for i in (0..p).rev() {
        let (until, after) = factor.split_at_mut((i + 1) * p);
        let own = &mut until[i * p..];
        let (diagonal, tail) = (1.0 / own[i], &mut row[..p - i - 1]);
        tail.fill(0.0);
        add_rows(tail, |k| own[k + i + 1], after, p, 0, p - i - 1, i + 1);
        for (x, y) in own[i + 1..].iter_mut().zip(tail) {
            *x = -*y * diagonal;
        }
        own[i] = diagonal;
    }
    for i in 0..p {
        for j in 0..i {
            factor[i * p + j] = factor[j * p + i];
            factor[j * p + i] = 0.0;
        }
    }
    for i in 0..p {
        let own = &mut inverse[i * p..i * p + i + 1];
        own.fill(0.0);
        add_rows(own, |k| factor[k * p + i], &factor, p, i, p, 0);
    }
    for i in 0..p {
        for j in 0..=i {
            let value = inverse[i * p + j] * scale[i] * scale[j];
            inverse[i * p + j] = value;
            inverse[j * p + i] = value;
        }
    }
}

struct Scratch {
    shares: [f64; MOST_K],
    tau: [f64; MOST_K],
    trusted: [f64; MOST_K],
    squares: [f64; MOST_K],
    means: [f64; MOST_K * MOST_Q],
    gain: [f64; MOST_P],
}

#[inline(always)]
fn evaluate(
    z: &Sizes, noise: &impl Noise, constant: f64, gate: &[f64], experts: &[f64], variances: &[f64], w: &[f64],
    r: &[f64], y: &[f64], s: &mut Scratch,
) -> f64 {
    let (shares, tau) = (&mut s.shares[..z.k], &mut s.tau[..z.k]);
    for (k, row) in gate.chunks_exact(z.p_w).enumerate() {
        tau[k] = dot(row, w);
        shares[k] = tau[k];
    }
    (shares[z.k - 1], tau[z.k - 1]) = (0.0, 0.0);
    let mut top = shares[0];
    for &share in shares.iter() {
        top = if share > top { share } else { top };
    }
    let mut total = 0.0;
    for share in shares.iter_mut() {
        *share = (*share - top).exp();
        total += *share;
    }
    let (log_gate, part) = (top + total.ln(), 1.0 / total);
    for share in shares.iter_mut() {
        *share *= part;
    }
    for (mean, row) in s.means.iter_mut().zip(experts.chunks_exact(z.p_v)) {
        *mean = dot(row, r);
    }
    if y[0].is_nan() {
        return f64::NAN;
    }
    let (mut largest, mut products) = (f64::NEG_INFINITY, [1.0; MOST_K]);
    for k in 0..z.k {
        let (mut square, mut product) = (0.0, 1.0);
        for q in 0..z.q {
            let (error, variance) = (y[q] - s.means[k * z.q + q], variances[k * z.q + q]);
            square += error * error / variance;
            product *= variance;
            if z.q > 1 && !(1e-100 < product && product < 1e100) {
                tau[k] -= 0.5 * product.ln();
                product = 1.0;
            }
        }
        (products[k], s.squares[k]) = (product, square);
        tau[k] -= noise.energy(square);
        largest = if tau[k] > largest { tau[k] } else { largest };
    }
    total = 0.0;
    for k in 0..z.k {
        tau[k] = (tau[k] - largest).exp() / products[k].sqrt();
        total += tau[k];
    }
    let part = 1.0 / total;
    for t in tau.iter_mut() {
        *t *= part;
    }
    log_gate - largest - total.ln() + constant
}

#[inline(always)]
fn adaptive_weight(shares: &[f64]) -> f64 {
    let (mut largest, mut rest) = (shares[0], 0.0);
    for &share in &shares[1..] {
        if share > largest {
            rest += largest;
            largest = share;
        } else {
            rest += share;
        }
    }
    let apart = largest - rest;
    if apart <= 0.0 {
        return 1.0;
    }
    if apart < 1e-4 { 1.0 - apart * apart / 3.0 } else { 2.0 * apart / (largest / rest.max(1e-300)).ln() }
}

struct Means<'a> {
    residual: &'a mut [f64],
    share: f64,
    at: usize,
}

impl Means<'_> {
    #[inline(always)]
    fn enter(&mut self, entry: f64, square: &mut f64) {
        self.residual[self.at] += self.share * (entry - self.residual[self.at]);
        *square += entry * entry;
        self.at += 1;
    }
}

fn track_residual(
    z: &Sizes, mix: (f64, f64), least: f64, m: &mut State, weight: f64, s: &Scratch, w: &[f64], r: &[f64], y: &[f64],
) {
    let (last, decay) = (m.residual.len() - 1, *m.decay);
    m.residual[last] += 1.0;
    let share = (1.0 / m.residual[last]).max(least);
    let mut means = Means { residual: &mut *m.residual, share, at: 0 };
    let bend = weight * adaptive_weight(&s.shares[..z.k]);
    let (mixed, mut linear, mut square, p) =
        (mix.1 / (1.0 + mix.1 * (z.k - 1) as f64), [[0.0; MOST_P]; MOST_K], 0.0, z.p_w);
    for i in 0..p {
        for j in 0..p {
            let entry = bend * w[i] * w[j] - decay * m.gate_gram[i * p + j];
            for k in 0..z.k - 1 {
                linear[k][i] += entry * m.gate[k * p + j];
            }
            means.enter(entry, &mut square);
        }
    }
    for i in 0..p {
        let mut total = 0.0;
        for k in 0..z.k - 1 {
            total += linear[k][i];
        }
        for k in 0..z.k - 1 {
            let bent = (linear[k][i] - mixed * total) / mix.0;
            means.enter(weight * (s.shares[k] - s.tau[k]) * w[i] - bent, &mut square);
        }
    }
    let p = z.p_v;
    for k in 0..z.k {
        let (amount, gram) = (weight * s.trusted[k], &m.grams[k * p * p..(k + 1) * p * p]);
        let (theta, mut own) = (&m.experts[k * z.q * p..(k + 1) * z.q * p], 0.0);
        linear = [[0.0; MOST_P]; MOST_K];
        for i in 0..p {
            for j in 0..p {
                let stored = decay * gram[i * p + j];
                for q in 0..z.q {
                    linear[q][i] += stored * theta[q * p + j];
                }
                means.enter(amount * r[i] * r[j] - stored, &mut own);
            }
        }
        for q in 0..z.q {
            for i in 0..p {
                means.enter(amount * y[q] * r[i] - linear[q][i], &mut own);
            }
        }
        square += own;
        for q in 0..z.q {
            let mut explained = 0.0;
            for i in 0..p {
                explained += linear[q][i] * theta[q * p + i];
            }
            let left = m.masses[k] * m.variances[k * z.q + q] + explained;
            means.enter(amount * y[q] * y[q] - left, &mut square);
        }
        means.enter(weight * s.tau[k] - m.masses[k], &mut square);
    }
    m.residual[last - 1] += share * (square.sqrt() - m.residual[last - 1]);
    if !m.residual[last - 1].is_finite() {
        m.residual.fill(0.0);
    }
}

fn top_up(prior: &[f64], amount: f64, decay: f64, gram: &mut [f64], inverse: &mut [f64]) {
    let p = prior.len();
    for i in 0..p {
        for x in &mut gram[i * p..(i + 1) * p] {
            *x *= decay;
        }
        gram[i * p + i] += amount * prior[i];
    }
    invert_spd(gram, inverse, p);
}

#[inline(always)]
fn add_product(matrix: &[f64], x: &[f64], out: &mut [f64]) {
    for (row, weight) in matrix.chunks_exact(out.len()).zip(x) {
        for (y, a) in out.iter_mut().zip(row) {
            *y += weight * a;
        }
    }
}

fn refresh(z: &Sizes, m: &mut State, prior_weight: f64) {
    let missing = prior_weight - *m.prior_weight;
    let (share, p, mut pull) = (missing / z.k as f64, z.p_v, [0.0; MOST_P]);
    top_up(m.prior_gate_gram, missing, *m.decay, m.gate_gram, m.gate_inverse);
    for row in m.gate.chunks_exact_mut(z.p_w) {
        for j in 0..z.p_w {
            pull[j] = -missing * m.prior_gate_gram[j] * row[j];
        }
        add_product(m.gate_inverse, &pull[..z.p_w], row);
    }
    for k in 0..z.k {
        let inverse = &mut m.inverses[k * p * p..(k + 1) * p * p];
        top_up(m.prior_expert_gram, share, *m.decay, &mut m.grams[k * p * p..(k + 1) * p * p], inverse);
        if share <= 0.0 {
            continue;
        }
        for q in 0..z.q {
            let (theta, prior) = (&mut m.experts[(k * z.q + q) * p..][..p], &m.prior_experts[q * p..][..p]);
            let (old, mut spread) = (theta.to_vec(), 0.0);
            for j in 0..p {
                pull[j] = share * m.prior_expert_gram[j] * (prior[j] - theta[j]);
            }
            add_product(inverse, &pull[..p], theta);
            for j in 0..p {
                spread += share * m.prior_expert_gram[j] * (prior[j] - theta[j]) * (prior[j] - old[j]);
            }
            let variance = &mut m.variances[k * z.q + q];
            let total = m.masses[k] * *variance + share * m.prior_variances[q] + spread.max(0.0);
            *variance = total / (m.masses[k] + share);
        }
        m.masses[k] += share;
    }
    *m.prior_weight = prior_weight;
    *m.decay = 1.0;
}

#[inline(always)]
fn step_gate(z: &Sizes, mix: (f64, f64), m: &mut State, amount: f64, w: &[f64], s: &mut Scratch) {
    let (p, weight) = (z.p_w, amount * adaptive_weight(&s.shares[..z.k]));
    let shrink = 1.0 / (1.0 + weight * symmetric_product(m.gate_inverse, w, &mut s.gain));
    add_outer(m.gate_inverse, &s.gain[..p], -weight * shrink);
    add_outer(m.gate_gram, w, weight);
    let mut total = 0.0;
    for k in 0..z.k - 1 {
        total += s.shares[k] - s.tau[k];
    }
    for (k, row) in m.gate.chunks_exact_mut(p).enumerate() {
        let step = amount * shrink * mix.0 * (s.shares[k] - s.tau[k] + mix.1 * total);
        for (x, gain) in row.iter_mut().zip(&s.gain) {
            *x -= step * gain;
        }
    }
}

#[inline(always)]
fn step_experts(
    z: &Sizes, floor: f64, m: &mut State, keep: f64, fresh: f64, amount: f64, r: &[f64], y: &[f64], s: &mut Scratch,
) {
    let p = z.p_v;
    for k in 0..z.k {
        let old = keep * m.masses[k];
        let mass = (old + fresh * s.tau[k]).max(1e-100);
        m.masses[k] = mass;
        if s.tau[k] == 0.0 {
            continue;
        }
        let (weight, inverse) = (amount * s.trusted[k], &mut m.inverses[k * p * p..(k + 1) * p * p]);
        let shrink = 1.0 / (1.0 + weight * symmetric_product(inverse, r, &mut s.gain));
        for q in 0..z.q {
            let (at, error) = (k * z.q + q, y[q] - s.means[k * z.q + q]);
            let push = weight * shrink * error;
            let value = (old * m.variances[at] + fresh * s.trusted[k] * error * error * shrink) / mass;
            m.variances[at] = value.max(floor * m.prior_variances[q]);
            for (x, gain) in m.experts[at * p..(at + 1) * p].iter_mut().zip(&s.gain) {
                *x += push * gain;
            }
        }
        add_outer(inverse, &s.gain[..p], -weight * shrink);
        add_outer(&mut m.grams[k * p * p..(k + 1) * p * p], r, weight);
    }
}

#[inline(always)]
fn blend(average: &mut [f64], raw: &[f64], weight: f64) {
    if weight >= 1.0 {
        return average.copy_from_slice(raw);
    }
    for (a, r) in average.iter_mut().zip(raw) {
        *a += weight * (r - *a);
    }
}

fn is_sound(z: &Sizes, m: &State) -> bool {
    let all = |values: &[f64]| values.iter().all(|x| x.is_finite());
    let diagonals = |matrices: &[f64], p: usize| {
        matrices.chunks_exact(p * p).all(|matrix| matrix.iter().step_by(p + 1).all(|x| x.is_finite()))
    };
    all(m.gate) && all(m.experts) && all(m.variances) && all(m.masses) && m.decay.is_finite()
        && all(m.average_gate) && all(m.average_experts) && all(m.average_variances) && m.prior_weight.is_finite()
        && diagonals(m.gate_gram, z.p_w) && diagonals(m.gate_inverse, z.p_w)
        && diagonals(m.grams, z.p_v) && diagonals(m.inverses, z.p_v)
}

/// # Safety
/// All pointers are to arrays of the sizes that the model has.
#[no_mangle]
pub unsafe extern "C" fn learn_rows(
    model: *mut Model, n: i64, gammas: *const f64, weights: *const f64, rows_w: *const f64, rows_r: *const f64,
    rows_y: *const f64, losses: *mut f64, predictions: *mut f64,
) -> i64 {
    let given = &*model;
    let [k, q, p_w, p_v, n_residual, averaging] = given.sizes.map(|size| size as usize);
    let [squared_tail, log_integral, a, b, prior_strength, floor, least] = given.numbers;
    let (z, n, g) = (Sizes { k, q, p_w, p_v }, n as usize, given.arrays);
    let m = &mut State {
        n: &mut *given.n,
        n_average: &mut *given.n_average,
        decay: &mut *g[0],
        prior_weight: &mut *g[1],
        gate: from_raw_parts_mut(g[2], (k - 1) * p_w),
        gate_gram: from_raw_parts_mut(g[3], p_w * p_w),
        gate_inverse: from_raw_parts_mut(g[4], p_w * p_w),
        experts: from_raw_parts_mut(g[5], k * q * p_v),
        variances: from_raw_parts_mut(g[6], k * q),
        masses: from_raw_parts_mut(g[7], k),
        grams: from_raw_parts_mut(g[8], k * p_v * p_v),
        inverses: from_raw_parts_mut(g[9], k * p_v * p_v),
        average_gate: from_raw_parts_mut(g[10], (k - 1) * p_w),
        average_experts: from_raw_parts_mut(g[11], k * q * p_v),
        average_variances: from_raw_parts_mut(g[12], k * q),
        prior_gate_gram: from_raw_parts(g[13], p_w),
        prior_expert_gram: from_raw_parts(g[14], p_v),
        prior_experts: from_raw_parts(g[15], q * p_v),
        prior_variances: from_raw_parts(g[16], q),
        residual: from_raw_parts_mut(g[17], n_residual),
    };
    let (gammas, weights) = (from_raw_parts(gammas, n), from_raw_parts(weights, n));
    let (rows_w, rows_r, rows_y) =
        (from_raw_parts(rows_w, n * p_w), from_raw_parts(rows_r, n * p_v), from_raw_parts(rows_y, n * q));
    let (losses, predictions) = (from_raw_parts_mut(losses, n), from_raw_parts_mut(predictions, n * q));
    let options = (a, b, prior_strength, floor, least, averaging as f64);
    let constant = 0.5 * q as f64 * LOG_2PI + log_integral;
    let outliers = learn(
        &z, &Gaussian { squared_tail }, constant, options, m, gammas, weights, rows_w, rows_r, rows_y, losses, predictions,
    );
    for (i, loss) in losses.iter().enumerate() {
        if !(loss.abs() <= 1e200 || rows_y[i * q].is_nan()) || !(predictions[i * q].abs() <= 1e100) {
            return -1;
        }
    }
    if is_sound(&z, m) { outliers } else { -1 }
}

fn learn(
    z: &Sizes, noise: &impl Noise, constant: f64, options: (f64, f64, f64, f64, f64, f64), m: &mut State, gammas: &[f64],
    weights: &[f64], rows_w: &[f64], rows_r: &[f64], rows_y: &[f64], losses: &mut [f64], predictions: &mut [f64],
) -> i64 {
    let (a, b, prior_strength, floor, least, averaging) = options;
    let s = &mut Scratch {
        shares: [0.0; MOST_K],
        tau: [0.0; MOST_K],
        trusted: [0.0; MOST_K],
        squares: [0.0; MOST_K],
        means: [0.0; MOST_K * MOST_Q],
        gain: [0.0; MOST_P],
    };
    let (mut learned, mut outliers) = (0, 0);
    for i in 0..losses.len() {
        let (w, r) = (&rows_w[i * z.p_w..(i + 1) * z.p_w], &rows_r[i * z.p_v..(i + 1) * z.p_v]);
        let y = &rows_y[i * z.q..(i + 1) * z.q];
        losses[i] =
            evaluate(z, noise, constant, m.average_gate, m.average_experts, m.average_variances, w, r, y, s);
        for q in 0..z.q {
            let mut total = 0.0;
            for k in 0..z.k {
                total += s.shares[k] * s.means[k * z.q + q];
            }
            predictions[i * z.q + q] = total;
        }
        if y[0].is_nan() {
            continue;
        }
        let gamma = gammas[learned];
        learned += 1;
        evaluate(z, noise, constant, m.gate, m.experts, m.variances, w, r, y, s);
        let mut beyond = 0.0;
        for k in 0..z.k {
            if noise.is_outlier(s.squares[k]) {
                if s.tau[k] < 1e-18 {
                    s.tau[k] = 0.0;
                }
                beyond += s.tau[k];
            }
            s.trusted[k] = s.tau[k] * noise.irls_weight(s.squares[k]);
        }
        outliers += i64::from(beyond > 0.5);
        if *m.n % 64 == 0 {
            track_residual(z, (a, b), least, m, weights[i], s, w, r, y);
        }
        let keep = 1.0 - gamma;
        let (decay, fresh) = (*m.decay * keep, gamma * weights[i]);
        let amount = fresh / decay;
        step_gate(z, (a, b), m, amount, w, s);
        step_experts(z, floor, m, keep, fresh, amount, r, y, s);
        *m.n += 1;
        *m.decay = decay;
        *m.prior_weight *= keep;
        if decay < 0.5 {
            let weight = m.prior_weight.max(prior_strength * gamma);
            refresh(z, m, weight);
        }
        *m.n_average += 1;
        let weight = averaging / (*m.n_average as f64 + averaging - 1.0);
        blend(m.average_gate, m.gate, weight);
        blend(m.average_experts, m.experts, weight);
        blend(m.average_variances, m.variances, weight);
    }
    outliers
}
