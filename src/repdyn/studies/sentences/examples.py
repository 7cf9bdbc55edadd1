"""Built-in sentences: groups of paraphrases, and sentences with one thing changed in four ways."""

from __future__ import annotations

PARAPHRASES: dict[str, tuple[str, ...]] = {
    "rain": (
        "It has been raining since early this morning.",
        "Wet weather set in at dawn and has not stopped.",
        "Showers began at sunrise and still go on.",
        "There was no dry minute from daybreak until now.",
        "The rain started before breakfast and never let up.",
    ),
    "late train": (
        "The train to London leaves twenty minutes late.",
        "Departure of the London service is delayed by twenty minutes.",
        "Passengers for London will have to wait twenty minutes longer.",
        "The London express is running twenty minutes behind schedule.",
        "Our journey to London starts a third of an hour after the planned time.",
    ),
    "lost keys": (
        "I cannot find my house keys anywhere.",
        "The keys to my home have gone missing.",
        "My door keys are lost, and I have searched every place.",
        "Nowhere can I discover what I unlock my front door with.",
        "I must have misplaced the keys of my flat.",
    ),
    "cheap phone": (
        "This phone costs much less than the others.",
        "Compared with its rivals the handset is very cheap.",
        "Other mobiles are far more expensive than this one.",
        "You pay only a fraction of the usual price for this device.",
        "The telephone is a real bargain beside what competitors sell.",
    ),
    "new vaccine": (
        "Scientists have developed a vaccine against malaria.",
        "A jab that protects from malaria was created by researchers.",
        "Research has produced an injection which prevents malaria.",
        "There is now an inoculation for malaria, thanks to laboratory work.",
        "Medical teams found a way to immunise people against malaria.",
    ),
    "election": (
        "The opposition won the election by a narrow margin.",
        "Voters gave the challengers a slim victory.",
        "With just a few more ballots the opposing party beat the government.",
        "The ruling party was barely defeated at the polls.",
        "A very small majority of the electorate chose the other side.",
    ),
    "burnt dinner": (
        "She left the chicken in the oven for too long.",
        "Her roast burned because she forgot to take it out.",
        "The poultry was overcooked through her carelessness.",
        "Dinner came out black, as she had not watched the stove.",
        "She let the bird bake until it was charred.",
    ),
    "football": (
        "The home team scored twice in the last ten minutes.",
        "Two late goals were made by the hosts.",
        "Shortly before the final whistle the local side found the net two times.",
        "Near the end of the match the hosts put a couple of balls in.",
        "A pair of goals fell for the home players just before the close.",
    ),
    "old library": (
        "The library in the town centre is being renovated.",
        "Builders are restoring the central public library.",
        "Repair works are under way where the city lends its books.",
        "The downtown house of books gets a thorough refurbishment.",
        "Our municipal library, in the middle of town, is under reconstruction.",
    ),
    "tired child": (
        "The little boy fell asleep during the story.",
        "While the tale was being read, the small child dozed off.",
        "He nodded off, young as he was, before the book was finished.",
        "Bedtime reading sent the lad to sleep.",
        "The toddler's eyes closed in the middle of the narrative.",
    ),
    "interest rates": (
        "The central bank raised interest rates again.",
        "Borrowing money became dearer after another decision of the monetary authority.",
        "Once more the reserve bank put up the cost of credit.",
        "Loans get more expensive, since policy makers lifted the base rate a further time.",
        "Yet another increase of the key rate was announced by the bankers in charge.",
    ),
    "mountain": (
        "They reached the summit just before noon.",
        "The climbers stood on the top shortly before midday.",
        "It was almost twelve when the party arrived at the peak.",
        "The highest point was gained late in the morning.",
        "A little before lunch the mountaineers had conquered the crest.",
    ),
}
"""12 groups of 5 sentences that say the same in words as different as possible."""

_SUBJECTS = (
    # as it is, plural, negated, past, of the other gender
    (
        "The king signs the letter.",
        "The kings sign the letter.",
        "The king does not sign the letter.",
        "The king signed the letter.",
        "The queen signs the letter.",
    ),
    (
        "The waiter brings the hot soup.",
        "The waiters bring the hot soup.",
        "The waiter does not bring the hot soup.",
        "The waiter brought the hot soup.",
        "The waitress brings the hot soup.",
    ),
    (
        "The actor forgets an important line.",
        "The actors forget an important line.",
        "The actor does not forget an important line.",
        "The actor forgot an important line.",
        "The actress forgets an important line.",
    ),
    (
        "My uncle repairs the old car.",
        "My uncles repair the old car.",
        "My uncle does not repair the old car.",
        "My uncle repaired the old car.",
        "My aunt repairs the old car.",
    ),
    (
        "The boy climbs the apple tree.",
        "The boys climb the apple tree.",
        "The boy does not climb the apple tree.",
        "The boy climbed the apple tree.",
        "The girl climbs the apple tree.",
    ),
    (
        "The father sings in the choir.",
        "The fathers sing in the choir.",
        "The father does not sing in the choir.",
        "The father sang in the choir.",
        "The mother sings in the choir.",
    ),
    (
        "The prince rides across the valley.",
        "The princes ride across the valley.",
        "The prince does not ride across the valley.",
        "The prince rode across the valley.",
        "The princess rides across the valley.",
    ),
    (
        "Our brother studies chemistry at the university.",
        "Our brothers study chemistry at the university.",
        "Our brother does not study chemistry at the university.",
        "Our brother studied chemistry at the university.",
        "Our sister studies chemistry at the university.",
    ),
    (
        "Their grandfather waters the roses.",
        "Their grandfathers water the roses.",
        "Their grandfather does not water the roses.",
        "Their grandfather watered the roses.",
        "Their grandmother waters the roses.",
    ),
    (
        "The policeman stops the red lorry.",
        "The policemen stop the red lorry.",
        "The policeman does not stop the red lorry.",
        "The policeman stopped the red lorry.",
        "The policewoman stops the red lorry.",
    ),
    (
        "The man sells fresh bread.",
        "The men sell fresh bread.",
        "The man does not sell fresh bread.",
        "The man sold fresh bread.",
        "The woman sells fresh bread.",
    ),
    (
        "Your nephew draws a map of the island.",
        "Your nephews draw a map of the island.",
        "Your nephew does not draw a map of the island.",
        "Your nephew drew a map of the island.",
        "Your niece draws a map of the island.",
    ),
)

CHANGES: dict[str, tuple[tuple[str, str], ...]] = {
    kind: tuple((sentences[0], sentences[place]) for sentences in _SUBJECTS)
    for place, kind in enumerate(("singular to plural", "negated", "present to past", "he to she"), start=1)
}
"""4 kinds of change of the same 12 sentences: what the sentences are about cannot tell the kinds apart."""
