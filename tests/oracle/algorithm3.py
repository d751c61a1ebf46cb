"""[MM] Algorithm 3 to the letter: categorical experts."""

from __future__ import annotations

import numpy as np

from tests.oracle.algorithm1 import Algorithm1, curvature_bound, curvature_weight, log_softmax


class Algorithm3(Algorithm1):
    """Experts softmax(0, C_k r) over M classes; an event's y is the number of its class.

    The formula's reference class is its last one. Here, as in the package, it is class 0, which was seen first, and
    the rows of C_k belong to the classes 1 … M−1; the bounds do not care.

    Statistics beside the gate's, for an event of weight v, with B the curvature bound of M−1 free logits:
        s3 (K, M−1, p_v)                v (τ_k (e_k − 1_y)_{1..M−1} rᵀ − τ_k a_k B C_k r rᵀ)
        s4 (K, (M−1) p_v, (M−1) p_v)    v ½ B ⊗ τ_k a_k r rᵀ
        s6 (K,)                         v τ_k
    """

    def begin_experts(self, parameters):
        self.C = np.array(parameters["experts"])
        self.B = curvature_bound(self.bound, self.C.shape[1])
        R = np.array(parameters["expert_grams"])
        return {
            "s3": -self.B @ self.C @ R,
            "s4": np.stack([0.5 * np.kron(self.B, each) for each in R]),
            "s6": np.array(parameters["masses"]),
        }

    def class_logits(self, r):
        """(K, M) of all classes; class 0 is the reference."""
        return np.stack([np.append(0.0, each @ r) for each in self.C])

    def log_experts(self, r, y):
        return np.array([log_softmax(each)[y] for each in self.class_logits(r)])

    def expert_statistics(self, r, y, tau):
        K, free, _ = self.C.shape
        logits = self.class_logits(r)
        one_y = np.eye(1 + free)[y]
        rr = np.outer(r, r)
        s3, s4 = [], []
        for k in range(K):
            e = np.exp(log_softmax(logits[k]))
            a = curvature_weight(self.bound, logits[k])
            s3.append(tau[k] * (np.outer((e - one_y)[1:], r) - a * self.B @ self.C[k] @ rr))
            s4.append(0.5 * np.kron(self.B, tau[k] * a * rr))
        return {"s3": np.stack(s3), "s4": np.stack(s4), "s6": tau}

    def expert_prior(self):
        """Each of the K experts has a K-th: curvature ½ B ⊗ Λ around the target C_0."""
        K = len(self.C)
        Lambda = np.diag(self.prior["expert_gram"])
        return {
            "s3": -self.B @ self.prior["experts"] @ Lambda / K,
            "s4": 0.5 * np.kron(self.B, Lambda / K),
            "s6": 1.0 / K,
        }

    def minimise_experts(self):
        """C_k = −(2 s4)⁻¹ s3."""
        right = self.s["s3"].reshape(len(self.C), -1, 1)
        self.C = -np.linalg.solve(2.0 * self.s["s4"], right).reshape(self.C.shape)

    @property
    def expert_theta(self):
        p = self.C.shape[2]
        return {"experts": self.C.copy(), "expert_grams": 2.0 * self.s["s4"][:, :p, :p] / self.B[0, 0]}
