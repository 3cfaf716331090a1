"""A sum of vectors over Z_2^b of which the server sees only masked terms, and which survives dropouts.

| stage | a client sends | the server answers |
|---|---|---|
| advertise | two public keys | the keys of its neighbours |
| share | shares of its mask key and its self-mask seed, sealed for each neighbour | what was sealed for it |
| mask | its vector + self-mask + sum of pairwise masks, each added by one of the pair and subtracted by the other | who is left |
| consent, if somebody dropped out | its signature of who is left | the signatures of `threshold` clients |
| unmask | shares of the seeds of survivors and of the mask keys of dropouts | - |

The pairwise masks of survivors cancel in the sum; the server recovers and takes away the survivors' self-masks and
the masks that survivors have in common with dropouts. Two masks, because an input that comes late, when its sender
has been taken for a dropout and its mask key recovered, must still be hidden.

**Guarantees**, under the usual assumptions on X25519, HKDF, ChaCha20-Poly1305 and AES-256:

* A server that follows the protocol but is curious, together with up to threshold - 1 of the holders of any other
  client's secrets, learns the sum of the survivors' vectors and nothing else about those of honest clients. With a
  graph that is not complete this holds except with the probability in `graph.Failures.security`.
* If fewer holders than the threshold are left for a secret that is needed, the round aborts on the server, and
  clients refuse to unmask; the mask that hides the sum then rests on a secret of which fewer than `threshold` shares
  are out, and every vector of every client is as likely as before.
* The sum is exact for every pattern of dropouts that leaves at least `threshold` holders of every client's secrets.

* In a complete graph, with a roster, and a threshold t of more than half of all clients and those that collude, K + C,
  a server that lies as it pleases, to each client something else, learns by that no other sum than one over
  `minimum_survivors`, those that collude counted in. An honest client gives shares of seeds alone, where nobody is said to
  be missing, or signs one list of survivors V, and gives shares of their seeds and of the others' mask keys once t clients
  have signed the same. *One V*: two lists would take 2 (t - C) > K - C honest clients. *Nobody outside V*: shares of its
  seed come from at most K - t honest clients who signed nothing, and K - t + C < t. *No part S of the honest in V*: masks
  with the rest of V hide it, whose keys are not out, unless the clients of S were not told of that rest. Then they did not
  sign V, and t - C honest clients outside S did. And each client of S counted t clients when it masked, itself among them,
  who are in S, outside V, or collude: at least t - C honest ones, and none of those who signed. That makes 2 (t - C) again.
  Where no list is signed no key is out, and each client in a sum counted enough who are in the same sum. All this is
  about one `MaskingClient` for each client and terms: whoever makes them must make no second one of the same terms.

**Not promised.** In a sparser graph, anything against a server that lies about who dropped out: it can have single
vectors. Without a roster of identities, against a server that hands out keys of its own. A client that shares or answers with wrong
numbers can make the round abort, and one that sends a wrong vector changes the sum; wrong shares of a seed are
noticed only if more than `threshold` holders answer. Links between client and server are taken to be authenticated.

Masks are expanded a whole machine word for an element and then cut to b bits, which leaves them uniform over Z_2^b:
at b = 17 as much key stream is made as at b = 32. What is sent is packed to b bits in any case.

Sources: Acs and Castelluccia, "I have a DREAM!", IH 2011 (pairwise masks); Bonawitz et al., "Practical secure
aggregation for privacy-preserving machine learning", CCS 2017 (dropouts, double masking, consistency check); Bell et al., "Secure
single-server aggregation with (poly)logarithmic overhead", CCS 2020 (few neighbours).
"""

from discreet.secure.masking.client import MaskingClient
from discreet.secure.masking.driver import masked_sum
from discreet.secure.masking.graph import (
    Failures,
    GraphPlan,
    dropouts_at_most,
    failures,
    plan_graph,
)
from discreet.secure.masking.server import MaskedTotal, MaskingServer
from discreet.secure.masking.state import Progress
from discreet.secure.masking.terms import STAGES, MaskingTerms, Stage

__all__ = [
    "STAGES",
    "Failures",
    "GraphPlan",
    "MaskedTotal",
    "MaskingClient",
    "MaskingServer",
    "MaskingTerms",
    "Progress",
    "Stage",
    "dropouts_at_most",
    "failures",
    "masked_sum",
    "plan_graph",
]
