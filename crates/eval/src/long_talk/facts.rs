//! What may be told of people in a long talk, in several ways each, and how it is asked for in other words.
//!
//! `{W}` is who it is about, `{V}` what is told, `{he}`, `{his}` and `{him}` go with the person. The first way to tell
//! begins with `{W}`, so that a pronoun can stand there. Facts at even places are for the development set, those at odd
//! places for the held-out one: what was tuned on the words of one says nothing about the words of the other.

pub(super) struct Fact {
    /// Ways to tell it.
    pub tells: [&'static str; 3],
    /// A later turn says otherwise; `{O}` is what was told before.
    pub changes: &'static str,
    /// Ways to ask for it, in words that the tellings do not have.
    pub asks: [&'static str; 3],
    /// How two people are asked about at once: `{A}` and `{B}`.
    pub both: &'static str,
    /// With commas between them.
    pub values: &'static str,
}

pub(super) const FACTS: [Fact; 32] = [
    Fact {
        tells: [
            "{W} finally got taken on at the {V}, the first shift is on Monday.",
            "Good news from {W}: the {V} said yes and {he} can start right away.",
            "So {W} earns {his} money at the {V} these days, imagine that.",
        ],
        changes: "{W} walked out of the {O} after a quarrel and is with the {V} instead.",
        asks: [
            "Where does {W} work?",
            "Who employs {W}?",
            "What kind of job does {W} have?",
        ],
        both: "Where do {A} and {B} work?",
        values: "bakery, airport, town library, print shop, fire station, fish market, brewery, sawmill, courthouse, \
            cinema, planetarium, dockyard",
    },
    Fact {
        tells: [
            "{W} came back from the shelter with a {V} under {his} arm.",
            "You should see it, there is a {V} asleep on {W}'s sofa since last week.",
            "The vet had a look at the {V} that {W} took in.",
        ],
        changes: "The {O} went to a cousin in the country, and {W} looks after a {V} now.",
        asks: [
            "Which animal does {W} keep at home?",
            "What pet has {W} got?",
            "What creature did {W} adopt?",
        ],
        both: "Which animals do {A} and {B} have?",
        values: "tortoise, parrot, ferret, greyhound, hedgehog, rabbit, beagle, canary, poodle, gecko, hamster, goldfish",
    },
    Fact {
        tells: [
            "{W} can't touch {V}, {his} throat swells up at once.",
            "We had to leave the restaurant because there was {V} in the soup and {W} came out in spots.",
            "Remind me to check the label for {V} whenever {W} eats with us.",
        ],
        changes: "The doctor tested {W} again: {O} is harmless after all, the trouble comes from {V}.",
        asks: [
            "What is {W} allergic to?",
            "Which food is dangerous for {W}?",
            "What must I not cook when {W} is my guest?",
        ],
        both: "What are {A} and {B} allergic to?",
        values: "celery, peanuts, shrimps, mustard, sesame, lupins, walnuts, soya, kiwis, strawberries, eggs, hazelnuts",
    },
    Fact {
        tells: [
            "{W} has packed up the flat and settled down in {V}.",
            "The removal van took everything of {W}'s to {V} on Friday.",
            "From now on {W}'s letters have to be sent to {V}.",
        ],
        changes: "{O} was too expensive in the long run, so {W} has found rooms in {V}.",
        asks: [
            "In which town does {W} live?",
            "Where is {W}'s home?",
            "What city would I visit {W} in?",
        ],
        both: "Which towns do {A} and {B} live in?",
        values: "Ghent, Porto, Leeds, Graz, Tartu, Lyon, Bergen, Turin, Malmo, Krakow, Zagreb, Cork",
    },
    Fact {
        tells: [
            "{W} sat down and played us something on the {V}, not bad at all.",
            "Through the wall I could hear {W} practising scales on the {V}.",
            "{W}'s lessons on the {V} are on Wednesdays.",
        ],
        changes: "{W} sold the {O} and spends every evening with a {V}.",
        asks: [
            "Which instrument is {W} learning?",
            "What does {W} make music with?",
            "On what can {W} perform a tune?",
        ],
        both: "Which instruments do {A} and {B} make music with?",
        values: "cello, oboe, banjo, accordion, harp, trombone, mandolin, clarinet, viola, bagpipes, tuba, zither",
    },
    Fact {
        tells: [
            "{W} is driving around in a {V} one since the old one broke down.",
            "A {V} hatchback was parked across the gate, and of course it was {W}'s.",
            "Look for something {V} with a dented bumper, then {W} has arrived.",
        ],
        changes: "The {O} one is scrap metal, {W} picked a {V} one at the dealer's.",
        asks: [
            "What colour is {W}'s car?",
            "How is the vehicle of {W} painted?",
            "Which colour did {W} choose for the automobile?",
        ],
        both: "What colour are the cars of {A} and {B}?",
        values: "turquoise, maroon, beige, orange, purple, olive, silver, yellow, pink, navy, bronze, lilac",
    },
    Fact {
        tells: [
            "{W} wrapped up the {V} for me, I had no idea until I tore the paper off.",
            "On my shelf stands the {V}, a surprise from {W} when I turned forty.",
            "I never use it, but the {V} came from {W} and so it stays.",
        ],
        changes: "It turns out the {O} came from somebody else; {W} handed me the {V}.",
        asks: [
            "What did {W} give me for my birthday?",
            "Which present did I get from {W}?",
            "What gift have I received from {W}?",
        ],
        both: "What presents did {A} and {B} give me?",
        values: "waffle iron, globe, chess set, hammock, telescope, teapot, puzzle, bathrobe, cookbook, kite, lamp, barometer",
    },
    Fact {
        tells: [
            "{W} spends every weekend with {V}, there is no talking about anything else.",
            "You won't reach {W} on Saturdays, that is when {V} takes all {his} time.",
            "{W} has got really good at {V} over the winter.",
        ],
        changes: "{W} got bored with {O} and has thrown {him}self into {V}.",
        asks: [
            "What is {W}'s hobby?",
            "How does {W} like to pass the free hours?",
            "What leisure activity is {W} keen on?",
        ],
        both: "What are the hobbies of {A} and {B}?",
        values: "beekeeping, fencing, pottery, orienteering, origami, birdwatching, archery, knitting, kayaking, \
            carpentry, calligraphy, bouldering",
    },
    Fact {
        tells: [
            "{W} flew off to {V} and sends pictures of every breakfast.",
            "There was a postcard from {V} in the letter box, {W}'s handwriting.",
            "{W} got badly sunburnt in {V}, two weeks were too much.",
        ],
        changes: "I mixed it up: {O} was the year before, this time {W} was in {V}.",
        asks: [
            "Where did {W} go on holiday?",
            "Which country did {W} travel to?",
            "What was the destination of {W}'s vacation?",
        ],
        both: "Where did {A} and {B} spend their holidays?",
        values: "Iceland, Morocco, Cyprus, Peru, Vietnam, Jordan, Malta, Kenya, Scotland, Oman, Cuba, Georgia",
    },
    Fact {
        tells: [
            "{W} passed the exam in {V}, with hardly any sleep.",
            "All those thick books on {W}'s desk are about {V}.",
            "The university sent {W} a letter: there is a place for {him} in {V}.",
        ],
        changes: "{W} gave up {O} after one term and enrolled for {V}.",
        asks: [
            "What does {W} study?",
            "Which subject is {W} a student of?",
            "What will {W} have a degree in?",
        ],
        both: "Which subjects do {A} and {B} study?",
        values: "geology, law, pharmacy, architecture, astronomy, linguistics, theology, economics, botany, nursing, \
            statistics, philosophy",
    },
    Fact {
        tells: [
            "{W} slipped on the stairs and hurt {his} {V} so badly that an ambulance came.",
            "They put a plaster cast on {W}'s {V} at the hospital.",
            "{W} still has pins in the {V} and can't lift anything.",
        ],
        changes: "The x-ray shows that the {O} is fine; it is the {V} that {W} has to rest.",
        asks: [
            "Which part of the body did {W} injure?",
            "What did {W} break in the accident?",
            "Where was {W} wounded in the fall?",
        ],
        both: "Which parts of the body did {A} and {B} injure?",
        values: "wrist, ankle, elbow, collarbone, knee, shoulder, thumb, hip, heel, jaw, ribs, shin",
    },
    Fact {
        tells: [
            "{W} switches off the phone when there is {V} on television.",
            "The scarf that {W} wears is from the {V} fan shop.",
            "{W} has a season ticket for {V} and never misses a match.",
        ],
        changes: "{W} says {O} is for children, it has to be {V} now.",
        asks: [
            "Which sport does {W} follow?",
            "What kind of game is {W} a supporter of?",
            "What athletics does {W} care about most?",
        ],
        both: "Which sports do {A} and {B} follow?",
        values: "curling, rugby, volleyball, snooker, biathlon, cricket, handball, badminton, hockey, darts, baseball, polo",
    },
    Fact {
        tells: [
            "{W} asked for {V} again, three helpings and no crumbs left.",
            "Nothing makes {W} as happy as a plate of {V}.",
            "If I want to cheer {W} up I put {V} on the stove.",
        ],
        changes: "{W} has had enough of {O} for a lifetime and wants {V} every time.",
        asks: [
            "What is {W}'s favourite dish?",
            "Which meal does {W} like best?",
            "What should I serve to please {W}?",
        ],
        both: "What are the favourite dishes of {A} and {B}?",
        values: "lasagne, goulash, ramen, paella, dumplings, moussaka, pancakes, risotto, falafel, chowder, gnocchi, ratatouille",
    },
    Fact {
        tells: [
            "{W} went all pale when a {V} turned up, {he} had to sit down.",
            "Don't ever show {W} a picture of a {V}.",
            "{W} screamed the house down, and it was only a {V}.",
        ],
        changes: "{W} has got over the {O} thing, but a {V} makes {him} shake.",
        asks: [
            "What is {W} afraid of?",
            "Which thing frightens {W}?",
            "What does {W} have a phobia about?",
        ],
        both: "What are {A} and {B} afraid of?",
        values: "spider, clown, snake, syringe, moth, lizard, mask, rat, balloon, goose, wasp, jellyfish",
    },
    Fact {
        tells: [
            "{W} owes me {V} euros since the concert tickets.",
            "I paid {V} euros at the counter for {W}, whose wallet was at home.",
            "{W} promised that the {V} euros are in my account by Friday.",
        ],
        changes: "I checked the bill: it wasn't {O} but {V} euros that I laid out for {W}.",
        asks: [
            "How much money did I lend {W}?",
            "What sum must {W} pay back to me?",
            "What is the amount of {W}'s debt?",
        ],
        both: "How much money must {A} and {B} pay back to me?",
        values: "35, 120, 48, 260, 75, 19, 310, 64, 180, 92, 430, 57",
    },
    Fact {
        tells: [
            "{W} told me the news at the door: the baby will be called {V}.",
            "Little {V} has {W}'s nose and never sleeps.",
            "{W} is changing nappies all day, and {V} smiles at everybody.",
        ],
        changes: "{W} and the family argued for a week, the little one is {V} and not {O}.",
        asks: [
            "What is the name of {W}'s child?",
            "How did {W} name the newborn?",
            "Which name did {W} decide on for the infant?",
        ],
        both: "What are the names of the children of {A} and {B}?",
        values: "Oskar, Ronja, Emil, Tilda, Bruno, Frieda, Anton, Mira, Hugo, Lotta, Jasper, Edda",
    },
    Fact {
        tells: [
            "{W} is on night duty as a {V} and sleeps until noon.",
            "The certificate on {W}'s wall says {V}, signed and stamped.",
            "If we ever need a {V} we only have to ring {W}.",
        ],
        changes: "{W} hung up the {O} overalls and retrained as a {V}.",
        asks: [
            "What is {W} by profession?",
            "What does {W} do for a living?",
            "Which occupation has {W} chosen?",
        ],
        both: "What do {A} and {B} do for a living?",
        values: "midwife, plumber, translator, locksmith, optician, surveyor, paramedic, welder, florist, notary, \
            bookbinder, chimney sweep",
    },
    Fact {
        tells: [
            "{W} bent over the exercise book again, {V} verbs this time.",
            "{W} greets everyone in {V} at the moment, with a terrible accent.",
            "There are {V} words on yellow notes all over {W}'s kitchen.",
        ],
        changes: "{W} has put {O} aside because of the grammar and begun with {V}.",
        asks: [
            "Which language is {W} learning?",
            "What foreign tongue does {W} want to speak?",
            "Which evening class does {W} take to talk with people abroad?",
        ],
        both: "Which languages are {A} and {B} learning?",
        values: "Danish, Korean, Portuguese, Hungarian, Arabic, Finnish, Welsh, Turkish, Swahili, Czech, Greek, Hindi",
    },
    Fact {
        tells: [
            "{W} won't sit in anything with wings, it has to be the {V}.",
            "{W} swears by the {V}, rain or shine, every single morning.",
            "The {V} was late again and {W} missed half the meeting.",
        ],
        changes: "Since the {O} was cancelled for good {W} depends on the {V}.",
        asks: [
            "How does {W} get to the office?",
            "What means of transport does {W} commute by?",
            "Which way of travelling does {W} use every day?",
        ],
        both: "How do {A} and {B} get to the office?",
        values: "ferry, tram, night bus, scooter, cable car, underground, tandem, motorbike, minibus, skateboard, trolleybus, \
            unicycle",
    },
    Fact {
        tells: [
            "{W} lugs a {V} around in that rucksack wherever {he} goes.",
            "I found a {V} on the back seat, it can only be {W}'s.",
            "{W} rang in a panic: the {V} must have stayed on the train.",
        ],
        changes: "The {O} was in the drawer all along; what {W} really misses is a {V}.",
        asks: [
            "What did {W} leave behind?",
            "Which object did {W} lose?",
            "What belonging of {W}'s has been mislaid?",
        ],
        both: "Which objects did {A} and {B} lose?",
        values: "thermos, compass, umbrella, laptop, notebook, camera, passport, flute case, tripod, headlamp, sketchbook, \
            penknife",
    },
    Fact {
        tells: [
            "{W} said the alarm goes off at {V} and not a minute later.",
            "At {V} the light goes on at {W}'s, even on Sundays.",
            "{W} has been dragging {him}self out of bed at {V} since the new timetable.",
        ],
        changes: "With the new timetable {O} is too late; for {W} the day begins at {V}.",
        asks: [
            "What time does {W} get up?",
            "When does {W} rise in the morning?",
            "How early is {W} awake?",
        ],
        both: "When do {A} and {B} get up?",
        values: "4:50, 5:20, 6:05, 6:40, 7:15, 5:35, 4:25, 7:50, 6:25, 8:10, 5:55, 7:35",
    },
    Fact {
        tells: [
            "{W} fell for somebody named {V}, there will be a wedding in autumn.",
            "{W} and {V} exchanged rings on the beach, barefoot.",
            "I met {V}, who holds {W}'s hand all the time and laughs at every joke.",
        ],
        changes: "It is over between {W} and {O}; the one who makes {him} blush is {V}.",
        asks: [
            "Who is {W} engaged to?",
            "What is the name of {W}'s partner?",
            "Whom is {W} going to marry?",
        ],
        both: "Who are the partners of {A} and {B}?",
        values: "Sascha, Robin, Kim, Andrea, Charlie, Jules, Nikita, Marlin, Toni, Luca, Sam, Rene",
    },
    Fact {
        tells: [
            "{W} covered the whole terrace with {V}, the bees are delighted.",
            "Behind the shed {W} has planted rows and rows of {V}.",
            "{W} gave me a bag of {V} from {his} own plot.",
        ],
        changes: "The snails ate the {O} to the ground, so {W} tries it with {V}.",
        asks: [
            "What does {W} grow in the garden?",
            "Which plants does {W} raise?",
            "What is {W} cultivating?",
        ],
        both: "What do {A} and {B} grow in their gardens?",
        values: "pumpkins, lavender, radishes, tulips, beetroot, sunflowers, rhubarb, chillies, dahlias, leeks, thyme, artichokes",
    },
    Fact {
        tells: [
            "{W} lives up on the {V} floor, and the lift is out of order.",
            "I carried the crate to the {V} floor for {W} and was out of breath.",
            "{W}'s bell is the one for the {V} floor.",
        ],
        changes: "{W} swapped with a neighbour: it isn't the {O} floor any more but the {V}.",
        asks: [
            "How many flights of stairs do I climb to see {W}?",
            "On which storey is {W}'s apartment?",
            "How high up in the building is {W} to be found?",
        ],
        both: "On which storeys are the apartments of {A} and {B}?",
        values: "third, ninth, fifth, eleventh, seventh, second, fourth, sixth, eighth, tenth, twelfth, fourteenth",
    },
    Fact {
        tells: [
            "{W} reads nothing but books about {V} on the train.",
            "If you let {W} begin about {V} the evening is over.",
            "{W} gave a talk about {V} at the community centre, forty people came.",
        ],
        changes: "{W} has left {O} behind and fills whole notebooks about {V}.",
        asks: [
            "Which topic is {W} an expert on?",
            "What is {W} fascinated by?",
            "What does {W} know everything about?",
        ],
        both: "Which topics are {A} and {B} experts on?",
        values: "lighthouses, Vikings, mushrooms, steam engines, meteorites, heraldry, glaciers, medieval maps, volcanoes, \
            submarines, pharaohs, railways",
    },
    Fact {
        tells: [
            "{W} takes {V} drops before going to bed, otherwise {he} lies awake.",
            "The pharmacy had run out of {V}, so I went across town for {W}.",
            "{W}'s doctor prescribed {V}, twice a day after eating.",
        ],
        changes: "{W} reacted badly to {O}, the doctor has replaced it by {V}.",
        asks: [
            "Which medicine does {W} need?",
            "What remedy has {W} been told to swallow?",
            "Which medication is {W} on?",
        ],
        both: "Which medicines do {A} and {B} need?",
        values: "valerian, cortisone, iron, magnesium, ibuprofen, insulin, zinc, arnica, quinine, melatonin, aspirin, iodine",
    },
    Fact {
        tells: [
            "{W} put on the {V} costume and the children went wild.",
            "I hardly recognised {W} at the party, all dressed up as a {V}.",
            "{W} sewed for three weeks to turn {him}self into a {V}.",
        ],
        changes: "The {O} outfit was torn at the last moment, so {W} went as a {V}.",
        asks: [
            "What did {W} wear for carnival?",
            "As what was {W} disguised?",
            "Which fancy dress did {W} choose?",
        ],
        both: "What did {A} and {B} wear for carnival?",
        values: "pirate, astronaut, penguin, wizard, lobster, scarecrow, mummy, knight, mermaid, robot, vampire, snowman",
    },
    Fact {
        tells: [
            "{W} drinks {V} by the litre, no matter what time it is.",
            "The waiter already knows it: {V} for {W}, without asking.",
            "I bought a crate of {V} because {W} is coming over.",
        ],
        changes: "{W} doesn't touch {O} any more; pour {him} a {V}.",
        asks: [
            "Which beverage does {W} prefer?",
            "What should I offer {W} when {he} is thirsty?",
            "What does {W} order in a bar?",
        ],
        both: "Which beverages do {A} and {B} prefer?",
        values: "buttermilk, cider, ginger ale, espresso, tomato juice, peppermint tea, root beer, lemonade, sherry, cocoa, \
            kefir, tonic water",
    },
    Fact {
        tells: [
            "{W} collects {V}, the cupboard door hardly closes.",
            "At every flea market {W} looks for {V}.",
            "{W} has more than two hundred {V} in boxes under the bed.",
        ],
        changes: "{W} sold all the {O} at an auction and has begun with {V}.",
        asks: [
            "What things does {W} gather?",
            "What would be a good addition to {W}'s treasures?",
            "Which objects does {W} hoard?",
        ],
        both: "What things do {A} and {B} gather?",
        values: "stamps, thimbles, fossils, postcards, beer mats, typewriters, snow globes, fountain pens, coins, matchboxes, \
            records, marbles",
    },
    Fact {
        tells: [
            "{W} used to be on stage as a {V}, you would not think so today.",
            "There is a photograph of {W} as a {V}, thirty years old and yellow.",
            "{W}'s first wages came from being a {V} in the holidays.",
        ],
        changes: "I asked {W} again: never a {O}, it was a {V} back then.",
        asks: [
            "What was {W} in former times?",
            "What did {W} do when {he} was young?",
            "Which job did {W} have long ago?",
        ],
        both: "What were {A} and {B} in former times?",
        values: "juggler, lifeguard, ventriloquist, newsreader, shepherd, croupier, tap dancer, goalkeeper, night porter, \
            drummer, ice seller, stuntman",
    },
    Fact {
        tells: [
            "{W} complained to the landlord about the {V}, it keeps the whole house awake.",
            "{W} can't sleep because of the {V}, three weeks already.",
            "I stayed at {W}'s overnight and the {V} drove me mad.",
        ],
        changes: "The {O} was repaired, but what bothers {W} now is the {V}.",
        asks: [
            "Which noise disturbs {W}?",
            "What is the problem with {W}'s flat?",
            "Why is {W} so tired all the time?",
        ],
        both: "Which noises disturb {A} and {B}?",
        values: "boiler, church bell, water pipe, rooster, building site, disco, ventilation, barking, dripping gutter, \
            generator, piano upstairs, freight trains",
    },
    Fact {
        tells: [
            "{W} wants a {V} as soon as the savings allow it.",
            "{W} cut out a picture of a {V} and stuck it to the fridge.",
            "One day, {W} says, there will be a {V} and nothing else matters.",
        ],
        changes: "{W} laughs about the {O} idea; these days {he} saves up for a {V}.",
        asks: [
            "What does {W} dream of owning?",
            "What would {W} buy after winning the lottery?",
            "What is {W}'s greatest wish?",
        ],
        both: "What do {A} and {B} dream of owning?",
        values: "sailing boat, vineyard, camper van, grand piano, windmill, log cabin, sauna, hot-air balloon, bookshop, \
            greenhouse, tractor, carousel",
    },
];

/// What happens on a day, or will: said with a day in words, and asked for by other ones.
pub(super) struct Event {
    pub tells: [&'static str; 2],
    pub asks: [&'static str; 2],
}

pub(super) const EVENTS: [Event; 12] = [
    Event {
        tells: [
            "{W} had the operation {D}, everything went well.",
            "They wheeled {W} into the theatre {D} and stitched the eye.",
        ],
        asks: [
            "When was {W}'s surgery?",
            "On which day was {W} treated by the surgeon?",
        ],
    },
    Event {
        tells: [
            "{W} passed the driving test {D}, at the third try.",
            "{D} {W} got the licence and drove straight to the sea.",
        ],
        asks: [
            "When was {W} allowed to drive for the first time?",
            "What is the date of {W}'s driving exam?",
        ],
    },
    Event {
        tells: [
            "{W}'s cellar was under water {D}, all the boxes are ruined.",
            "{D} a pipe burst and {W} stood ankle-deep in it.",
        ],
        asks: [
            "When was the flood at {W}'s?",
            "On what day did {W} have damage in the basement?",
        ],
    },
    Event {
        tells: [
            "{W} ran the marathon {D} and can hardly walk.",
            "{D} {W} did the whole forty-two kilometres in the rain.",
        ],
        asks: [
            "When did {W} take part in the long race?",
            "What day was {W}'s big run?",
        ],
    },
    Event {
        tells: [
            "{W} opened the shop {D}, there was a queue around the corner.",
            "{D} {W} cut the ribbon and the first customers came in.",
        ],
        asks: [
            "When did {W}'s business begin?",
            "On which date did {W} start selling?",
        ],
    },
    Event {
        tells: [
            "{W} signed the papers for the house {D}.",
            "{D} the notary read it all out and {W} got the keys.",
        ],
        asks: [
            "When did {W} become a home owner?",
            "What day did {W} buy the property?",
        ],
    },
    Event {
        tells: [
            "Somebody broke in at {W}'s {D} and took the silver.",
            "{D} the police were at {W}'s, the window had been smashed.",
        ],
        asks: [
            "When was {W} robbed?",
            "On which day did the burglary at {W}'s happen?",
        ],
    },
    Event {
        tells: [
            "{W} gave the speech {D} in front of three hundred people.",
            "{D} {W} stood on the podium and forgot half the text.",
        ],
        asks: [
            "When did {W} talk to a large audience?",
            "What was the date of {W}'s public appearance?",
        ],
    },
    Event {
        tells: [
            "{W} got the braces taken off {D} and smiles at every mirror.",
            "{D} {W} was rid of the wire in the mouth at last.",
        ],
        asks: [
            "When did the orthodontist finish with {W}?",
            "What day were {W}'s teeth done?",
        ],
    },
    Event {
        tells: [
            "{W} handed in the notice {D}, the boss was speechless.",
            "{D} {W} put the letter on the manager's desk and left.",
        ],
        asks: ["When did {W} quit?", "On what date did {W} resign?"],
    },
    Event {
        tells: [
            "{W} landed from overseas {D}, with two suitcases missing.",
            "{D} I fetched {W} from the terminal in the middle of the night.",
        ],
        asks: [
            "When did {W} return from abroad?",
            "What day did {W} arrive by plane?",
        ],
    },
    Event {
        tells: [
            "{W} retired {D}, with cake and a brass band.",
            "{D} the colleagues said goodbye to {W} after thirty years.",
        ],
        asks: [
            "When did {W} stop working for good?",
            "On which day did {W}'s pension begin?",
        ],
    },
];

/// Who a person is to the one who speaks: said once, with the name.
pub(super) const ROLES: [(&str, &str); 12] = [
    (
        "The woman who moved in next door introduced herself, her name is {W}.",
        "my neighbour",
    ),
    (
        "I shared a desk with {W} all week, we were put into the same office.",
        "my colleague",
    ),
    (
        "{W} had the pliers in my mouth for an hour, I can still feel it.",
        "my dentist",
    ),
    (
        "At the family party {W} told everyone we had the same grandmother.",
        "my cousin",
    ),
    (
        "{W} cut my fringe far too short this time.",
        "my hairdresser",
    ),
    (
        "The rent goes up, {W} put a note under my door about it.",
        "my landlord",
    ),
    ("{W} shouted at me to do ten more push-ups.", "my trainer"),
    (
        "Back then I copied all my homework from {W}, two rows ahead of me.",
        "my old classmate",
    ),
    (
        "{W} signs my holiday forms, and never before Friday.",
        "my boss",
    ),
    (
        "{W} and I have the same parents, but you would never guess.",
        "my sibling",
    ),
    (
        "{W} held me over the font when I was a baby.",
        "my godparent",
    ),
    (
        "I teach {W} fractions on Thursdays, for a little money.",
        "my pupil",
    ),
];
