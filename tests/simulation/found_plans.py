"""Plans that broke a property once, each as it was drawn then: how plans are drawn may change."""

from __future__ import annotations

from tests.simulation.swarm.plan import FaultKind, Leaving, Plan, PlannedCall, PlannedFault, PlannedNode

FOUND = {
    "a client had left while the bus was away, and its decoder was kept": Plan(
        5087,
        (
            PlannedNode("tokenizer-0", -0.5980733531761138, 164733),
            PlannedNode("detokenizer-0", 0.30254999586958187, -128638),
            PlannedNode("prefill-0", -0.5123823919793096, 148915),
            PlannedNode("prefill-1", 0.9170352181716117, -68034),
            PlannedNode("prefill-2", 0.9707660148290438, 192911),
            PlannedNode("decode-0", 0.5477906148741485, 75350),
            PlannedNode("decode-1", -0.25776427856466344, -186924),
            PlannedNode("decode-2", 0.837229467817294, -180150),
            PlannedNode("speculator-0", 0.391504399159988, -123707),
        ),
        (
            PlannedCall(
                0, 0.4281649250570082, 16, leaving=Leaving.CANCELS, leaves_after_s=0.008419991765520078
            ),
            PlannedCall(
                1, 0.08980923454608336, 16, leaving=Leaving.DROPS, leaves_after_s=0.06665870072336716
            ),
            PlannedCall(
                2, 0.6277482771996112, 16, leaving=Leaving.CANCELS, leaves_after_s=0.0022144475120872823
            ),
            PlannedCall(
                3, 0.7860638523938838, 16, leaving=Leaving.CANCELS, leaves_after_s=0.17296050200308932
            ),
            PlannedCall(4, 0.790591698215286, 10, leaving=Leaving.DROPS, leaves_after_s=0.7204093791837618),
            PlannedCall(5, 0.9804443103795766, 10, leaves_after_s=0.36006736351906415),
        ),
        (
            PlannedFault(0.5199719115994629, FaultKind.CRASH, "prefill-1", 0.7526048009557322, calls=36),
            PlannedFault(0.8319622343202, FaultKind.NATS_RESTART, "nats", 0.9595517973886033),
        ),
        local_prefill_tokens=512,
    ),
    "a client had left before its detokenizer was reached again, and its decoder was kept": Plan(
        9068,
        (
            PlannedNode("tokenizer-0", 0.0, 0),
            PlannedNode("detokenizer-0", 0.0, 0),
            PlannedNode("detokenizer-1", 0.0, 0),
            PlannedNode("prefill-0", 0.0, 0),
            PlannedNode("prefill-1", 0.0, 0),
            PlannedNode("decode-0", 0.0, 0),
            PlannedNode("decode-1", 0.0, 0),
            PlannedNode("decode-2", 0.0, 0),
        ),
        (
            PlannedCall(0, 0.271901451381265, 16, leaving=Leaving.DROPS, leaves_after_s=0.7602232965111174),
            PlannedCall(
                1,
                0.3652021861687563,
                23,
                deadline_s=0.25394605942922804,
                leaving=Leaving.CANCELS,
                leaves_after_s=0.09232322462798362,
            ),
            PlannedCall(2, 0.19034469633906836, 12, leaves_after_s=0.012519241795942552),
            PlannedCall(
                3,
                0.3992435944321163,
                12,
                deadline_s=0.6037008840411223,
                leaving=Leaving.DROPS,
                leaves_after_s=0.10009514427649262,
            ),
            PlannedCall(
                4, 0.26322776021423766, 16, deadline_s=0.3210579827841953, leaves_after_s=0.053311189996193345
            ),
            PlannedCall(5, 0.016428402750960247, 16, leaves_after_s=0.17119947809520822),
            PlannedCall(
                6,
                0.019984316605987096,
                23,
                deadline_s=0.21672491004449457,
                leaving=Leaving.CANCELS,
                leaves_after_s=0.4387073287273037,
            ),
            PlannedCall(7, 0.5082366510086651, 16, leaves_after_s=0.12687120066005783),
        ),
        (
            PlannedFault(0.025056852018818576, FaultKind.PARTITION, "detokenizer-0", 14.0),
            PlannedFault(0.7638130795443439, FaultKind.PARTITION, "tokenizer-0", 8.258707147897127),
            PlannedFault(0.9449063632160933, FaultKind.DRAIN, "prefill-1", 0.6875737680066274),
        ),
    ),
    "a detokenizer was cut off when its request was cancelled, and kept its decoder": Plan(
        9147,
        (
            PlannedNode("tokenizer-0", -0.27857911066663954, 23865),
            PlannedNode("tokenizer-1", 0.6897240432538463, 179176),
            PlannedNode("detokenizer-0", 0.27370497100732516, 80498),
            PlannedNode("detokenizer-1", -0.5186878182248638, -44330),
            PlannedNode("prefill-0", 0.8986496520686142, 93803),
            PlannedNode("prefill-1", 0.4361793583041125, 58687),
            PlannedNode("prefill-2", 0.21922408916516045, -47758),
            PlannedNode("decode-0", -0.4858959220668697, 34607),
            PlannedNode("decode-1", 0.2222547566920301, -127155),
        ),
        (
            PlannedCall(0, 0.882119025565632, 18, leaves_after_s=0.05389230607464214),
            PlannedCall(1, 0.20226246579181784, 18, leaves_after_s=0.08256416806727736),
            PlannedCall(2, 0.04078112676053047, 12, leaves_after_s=0.38402018261881665),
            PlannedCall(3, 0.6694185820102614, 16, leaves_after_s=0.3747194836239944),
        ),
        (
            PlannedFault(0.6312877404314168, FaultKind.SLOW, "prefill-0", 0.46815214151163165),
            PlannedFault(0.6899977165383424, FaultKind.PARTITION, "detokenizer-1", 10.081466330285096),
            PlannedFault(0.7204035421214112, FaultKind.DRAIN, "prefill-1", 0.42426992100840577),
        ),
        kv_blocks=40,
        max_sequences=2,
    ),
    "all tokens but the first were lost, and it took ten seconds until somebody looked": Plan(
        26,
        (
            PlannedNode("tokenizer-0", 0.0, 0),
            PlannedNode("detokenizer-0", 0.0, 0),
            PlannedNode("prefill-0", 0.0, 0),
            PlannedNode("decode-0", 0.0, 0),
        ),
        (PlannedCall(0, 0.1, 0),),
        (PlannedFault(0.0, FaultKind.LOST, "nats", 2.0, 1, "Text"),),
    ),
    "a worker had reconnected, and a request with little time was not let there": Plan(
        25,
        (
            PlannedNode("tokenizer-0", 0.0, 0),
            PlannedNode("detokenizer-0", 0.0, 0),
            PlannedNode("prefill-0", 0.0, 0),
            PlannedNode("decode-0", 0.0, 0),
        ),
        (PlannedCall(2, 0.2256, 15, deadline_s=0.44),),
        (PlannedFault(0.156, FaultKind.LOST, "nats", 1.0, 0, "Reserve"),),
    ),
}
