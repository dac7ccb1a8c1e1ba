//! What may be told, and what is said that is no fact.
//!
//! `{W}` is a person as the speaker names them, `{V}` what is told, `{O}` what was told before. Entries at even places are
//! for the development set, those at odd places for the held-out one.

pub(super) struct Kind {
    /// It is about another person than the one who speaks.
    pub is_of_other: bool,
    /// Ways to tell it. The first one of other people begins with `{W}`, so that a pronoun can stand there.
    pub tells: [&'static str; 3],
    /// A later turn says otherwise.
    pub changes: &'static str,
    /// Said of the same thing, and no fact.
    pub supposes: [&'static str; 2],
    /// Asked about the same thing.
    pub asks: &'static str,
    /// With commas between them.
    pub values: &'static str,
}

pub(super) const KINDS: [Kind; 24] = [
    Kind {
        is_of_other: false,
        tells: [
            "I'm {V}.",
            "I've been {V} for three years.",
            "By the way, I'm {V}, so nothing else for me.",
        ],
        changes: "I'm not {O} any more, I'm {V} now.",
        supposes: [
            "If I were {V}, what would I have for breakfast?",
            "Maybe I should try being {V} for a week.",
        ],
        asks: "Is it healthy to be {V}?",
        values: "vegetarian, vegan, pescatarian, lactose intolerant, diabetic, teetotal",
    },
    Kind {
        is_of_other: false,
        tells: [
            "I work as a {V}.",
            "I got a job as a {V} last month.",
            "I'm a {V} by profession.",
        ],
        changes: "I'm no longer a {O}: I work as a {V} now.",
        supposes: ["Would I make a good {V}?", "Imagine I worked as a {V}."],
        asks: "What does a {V} earn?",
        values: "nurse, carpenter, lawyer, baker, pilot, farmer, dentist, plumber",
    },
    Kind {
        is_of_other: true,
        tells: [
            "{W} moved to {V} last spring.",
            "{W} lives in {V}.",
            "{W} has a flat in {V} since June.",
        ],
        changes: "{W} doesn't live in {O} any more, {W} moved to {V}.",
        supposes: [
            "If {W} lived in {V}, how long would the train take?",
            "Perhaps {W} will visit {V} some day.",
        ],
        asks: "What should {W} see in {V}?",
        values: "Antwerp, Lisbon, Oslo, Vienna, Dublin, Prague, Seoul, Chicago",
    },
    Kind {
        is_of_other: true,
        tells: [
            "{W} works as a {V}.",
            "{W} started as a {V} in May.",
            "{W} is a {V}, a very good one.",
        ],
        changes: "{W} has given up being a {O} and works as a {V} now.",
        supposes: [
            "Suppose {W} became a {V}.",
            "{W} would be a great {V}, don't you think?",
        ],
        asks: "Which books would a {V} like {W} read?",
        values: "teacher, gardener, translator, welder, florist, optician, surveyor, midwife",
    },
    Kind {
        is_of_other: false,
        tells: [
            "I'm allergic to {V}.",
            "I can't eat {V}, my throat swells up.",
            "My doctor found out that I'm allergic to {V}.",
        ],
        changes: "The doctor tested me again: I'm not allergic to {O} after all, but to {V}.",
        supposes: [
            "What if I were allergic to {V}?",
            "I could cook something with {V} tonight.",
        ],
        asks: "Which dishes contain {V}?",
        values: "peanuts, shellfish, celery, sesame, eggs, walnuts, mustard, soya",
    },
    Kind {
        is_of_other: false,
        tells: [
            "I live in {V}.",
            "I moved to {V} in March.",
            "My flat is in {V}.",
        ],
        changes: "I have left {O}, I live in {V} now.",
        supposes: [
            "If I moved to {V}, would I need a car?",
            "I might go to {V} one day.",
        ],
        asks: "What is the weather like in {V}?",
        values: "Hamburg, Toronto, Leeds, Porto, Krakow, Nairobi, Lyon, Bergen",
    },
    Kind {
        is_of_other: true,
        tells: [
            "{W} has a {V}.",
            "{W} got a {V} from the shelter.",
            "{W} keeps a {V} at home.",
        ],
        changes: "{W} had to give the {O} away and has a {V} now.",
        supposes: [
            "If {W} had a {V}, who would feed it?",
            "Do you think {W} would like a {V}?",
        ],
        asks: "How old does a {V} get?",
        values: "parrot, tortoise, rabbit, greyhound, hamster, ferret, canary, goldfish",
    },
    Kind {
        is_of_other: true,
        tells: [
            "{W} is allergic to {V}.",
            "{W} can't touch {V}, the skin turns red.",
            "{W} has to avoid {V} because of an allergy.",
        ],
        changes: "{W} was tested again: it isn't {O} but {V} that {W} is allergic to.",
        supposes: [
            "What could I cook for {W} if {V} were off the table?",
            "Suppose {W} couldn't eat {V}.",
        ],
        asks: "Can {W} replace {V} in a recipe?",
        values: "strawberries, milk, wheat, kiwis, hazelnuts, lupins, fish, apples",
    },
    Kind {
        is_of_other: false,
        tells: [
            "My dog is called {V}.",
            "I have a dog, its name is {V}.",
            "We named our dog {V}.",
        ],
        changes: "We renamed the dog: it is not called {O} but {V}.",
        supposes: [
            "If I had a dog I would call it {V}.",
            "Is {V} a good name for a dog?",
        ],
        asks: "Where does the name {V} come from?",
        values: "Biscuit, Rocket, Pepper, Shadow, Ziggy, Cookie, Thunder, Ginger",
    },
    Kind {
        is_of_other: false,
        tells: [
            "My birthday is on {V}.",
            "I was born on {V}.",
            "I turn forty on {V}.",
        ],
        changes: "I told you the wrong date: my birthday is on {V}, not on {O}.",
        supposes: [
            "What happened on {V} in history?",
            "Would {V} be a good day for a party?",
        ],
        asks: "Which sign of the zodiac is {V}?",
        values: "3 May, 17 August, 9 January, 28 October, 11 June, 22 February, 5 December, 30 April",
    },
    Kind {
        is_of_other: true,
        tells: [
            "{W} is married to {V}.",
            "{W} married {V} two years ago.",
            "{W} has been with {V} since school.",
        ],
        changes: "{W} and {O} are divorced, {W} is married to {V} now.",
        supposes: [
            "What would {W} say if {V} proposed?",
            "Imagine {W} married {V}.",
        ],
        asks: "Is {V} a common name?",
        values: "Robin, Sascha, Kim, Charlie, Jules, Luca, Toni, Rene",
    },
    Kind {
        is_of_other: true,
        tells: [
            "{W} speaks {V}.",
            "{W} is learning {V} at evening school.",
            "{W} teaches {V} to beginners.",
        ],
        changes: "{W} has dropped {O} and is learning {V} instead.",
        supposes: [
            "How would {W} greet me in {V}?",
            "Maybe {W} should learn {V}.",
        ],
        asks: "How hard is {V} for {W} to learn?",
        values: "Danish, Korean, Portuguese, Arabic, Finnish, Turkish, Czech, Greek",
    },
    Kind {
        is_of_other: false,
        tells: [
            "I play the {V}.",
            "I'm learning the {V}.",
            "I've played the {V} since I was ten.",
        ],
        changes: "I gave up the {O} and play the {V} now.",
        supposes: [
            "If I played the {V}, would the neighbours mind?",
            "I might learn the {V} one day.",
        ],
        asks: "How many keys does a {V} have?",
        values: "piano, cello, oboe, banjo, harp, trombone, flute, accordion",
    },
    Kind {
        is_of_other: false,
        tells: [
            "I'm learning {V}.",
            "I speak {V} at home.",
            "My mother tongue is {V}.",
        ],
        changes: "I stopped learning {O}, I'm learning {V} now.",
        supposes: ["How would I say hello in {V}?", "I wish I could speak {V}."],
        asks: "How many people speak {V}?",
        values: "Hungarian, Welsh, Hindi, Swahili, Polish, Dutch, Icelandic, Thai",
    },
    Kind {
        is_of_other: true,
        tells: [
            "{W} plays {V} in a club.",
            "{W} trains {V} every Thursday.",
            "{W} coaches a {V} team.",
        ],
        changes: "{W} has stopped with {O} and plays {V} now.",
        supposes: [
            "Would {W} be good at {V}?",
            "If {W} played {V}, we could watch.",
        ],
        asks: "What are the rules of {V}?",
        values: "rugby, handball, badminton, hockey, cricket, volleyball, chess, polo",
    },
    Kind {
        is_of_other: true,
        tells: [
            "{W}'s baby is called {V}.",
            "{W} has a daughter named {V}.",
            "{W} named the child {V}.",
        ],
        changes: "I misheard: {W}'s baby is called {V}, not {O}.",
        supposes: [
            "Would {V} be a nice name for {W}'s baby?",
            "Perhaps {W} will call the baby {V}.",
        ],
        asks: "What does the name {V} mean?",
        values: "Ronja, Emil, Tilda, Bruno, Frieda, Hugo, Lotta, Edda",
    },
    Kind {
        is_of_other: false,
        tells: [
            "I drive a {V}.",
            "I bought a {V}, my first car.",
            "My car is a {V}.",
        ],
        changes: "I sold the {O}, I drive a {V} now.",
        supposes: [
            "Should I buy a {V}?",
            "If I had a {V}, I could take everyone along.",
        ],
        asks: "How reliable is a {V}?",
        values: "Volvo, Fiat, Toyota, Renault, Skoda, Honda, Tesla, Peugeot",
    },
    Kind {
        is_of_other: false,
        tells: [
            "My favourite dish is {V}.",
            "I like {V} more than any other food.",
            "I could live on {V}, I love it.",
        ],
        changes: "I've had enough of {O}, my favourite dish is {V} now.",
        supposes: [
            "Shall I cook {V} tonight?",
            "I had {V} for lunch, it was fine.",
        ],
        asks: "How do you make {V}?",
        values: "lasagne, goulash, ramen, paella, risotto, falafel, gnocchi, pancakes",
    },
    Kind {
        is_of_other: true,
        tells: [
            "{W} drives a {V} to work.",
            "{W} bought a {V} two months ago.",
            "{W}'s car is a {V}.",
        ],
        changes: "{W} crashed the {O} and drives a {V} now.",
        supposes: ["Would a {V} suit {W}?", "Suppose {W} drove a {V}."],
        asks: "Is a {V} big enough for {W}'s family?",
        values: "Saab, Mazda, Opel, Jeep, Lancia, Subaru, Nissan, Dacia",
    },
    Kind {
        is_of_other: true,
        tells: [
            "{W} prefers {V} to every other drink.",
            "{W} only drinks {V}.",
            "{W} has {V} every morning, nothing else.",
        ],
        changes: "{W} doesn't drink {O} any more, only {V}.",
        supposes: [
            "Should I offer {W} some {V}?",
            "{W} might like {V}, who knows.",
        ],
        asks: "Where would {W} get good {V}?",
        values: "green tea, espresso, cider, cocoa, buttermilk, lemonade, tomato juice, ginger ale",
    },
    Kind {
        is_of_other: false,
        tells: [
            "I take {V} every day, my doctor wants me to.",
            "I've been prescribed {V}.",
            "I need {V} twice a day.",
        ],
        changes: "The doctor replaced {O}: I take {V} now.",
        supposes: [
            "Would {V} help me sleep?",
            "What happens if one takes too much {V}?",
        ],
        asks: "What is {V} good for?",
        values: "insulin, iron, magnesium, zinc, cortisone, aspirin, thyroxine, melatonin",
    },
    Kind {
        is_of_other: false,
        tells: [
            "My shoe size is {V}.",
            "I wear size {V} shoes.",
            "I take shoes in size {V}.",
        ],
        changes: "I measured my feet again: my shoe size is {V}, not {O}.",
        supposes: [
            "Is {V} a large shoe size?",
            "These would fit if my size were {V}.",
        ],
        asks: "What is size {V} in centimetres?",
        values: "36, 37, 38, 39, 41, 42, 44, 46",
    },
    Kind {
        is_of_other: true,
        tells: [
            "{W} is afraid of {V}.",
            "{W} has a phobia of {V}.",
            "{W} has been scared of {V} since childhood.",
        ],
        changes: "{W} isn't afraid of {O} any more, but of {V}.",
        supposes: [
            "Could {W} be afraid of {V}?",
            "If {W} met {V}, what would happen?",
        ],
        asks: "Why are people afraid of {V}?",
        values: "spiders, snakes, clowns, wasps, heights, needles, moths, geese",
    },
    Kind {
        is_of_other: true,
        tells: [
            "{W} studies {V}.",
            "{W} is studying {V} in the second year.",
            "{W} has a degree in {V}.",
        ],
        changes: "{W} switched from {O} to {V}.",
        supposes: [
            "Should {W} study {V}?",
            "If {W} had studied {V}, things would be different.",
        ],
        asks: "What can {W} do with {V} later?",
        values: "geology, medicine, history, philosophy, physics, economics, linguistics, archaeology",
    },
];

/// How the speaker names a person at first, and later.
pub(super) const PEOPLE: [(&str, &str); 16] = [
    ("my sister Clara", "Clara"),
    ("my brother Ben", "Ben"),
    ("my friend Tom", "Tom"),
    ("my boss Nora", "Nora"),
    ("my neighbour Viktor", "Viktor"),
    ("my aunt Greta", "Greta"),
    ("my daughter Ines", "Ines"),
    ("my son Leon", "Leon"),
    ("my colleague Rashid", "Rashid"),
    ("my cousin Wanda", "Wanda"),
    ("my flatmate Edgar", "Edgar"),
    ("my niece Priya", "Priya"),
    ("my uncle Piotr", "Piotr"),
    ("my partner Malik", "Malik"),
    ("my mother Olga", "Olga"),
    ("my grandfather Cedric", "Cedric"),
];

/// Names a person, for a pronoun in the turn after it.
pub(super) const NAMED: [&str; 6] = [
    "I rang {W} yesterday.",
    "{W} dropped by for a coffee.",
    "I had a chat with {W} this morning.",
    "{W} sends you greetings.",
    "Guess who I met: {W}.",
    "I wrote to {W} at last.",
];

/// What asks for something, and what passes.
pub(super) const PASSING: [&str; 64] = [
    "Write a haiku about the sea.",
    "Translate 'good morning' into Italian.",
    "Summarise the plot of Hamlet in two lines.",
    "Give me three ideas for dinner.",
    "Please make that shorter.",
    "Tell me a joke.",
    "Explain how a fridge works.",
    "Can you say that again in other words?",
    "Thanks, that helps.",
    "Thank you very much!",
    "Good morning!",
    "Hello again.",
    "I'm tired today.",
    "I have a headache this morning.",
    "It's raining again.",
    "The sun is out at last.",
    "The bus was late this morning.",
    "I missed the train by a minute.",
    "I had soup for lunch.",
    "I'm eating a sandwich right now.",
    "I'm going to the shop, back in a minute.",
    "I'll be away from the keyboard for a moment.",
    "That's funny.",
    "That's not what I meant.",
    "I don't understand your answer.",
    "I see, that makes sense.",
    "What is the capital of Peru?",
    "Who painted the Mona Lisa?",
    "How far is the moon?",
    "How long do I boil an egg?",
    "Why is the sky blue?",
    "Which river is the longest?",
    "Sort these numbers: 4, 9, 2.",
    "List five animals that begin with B.",
    "The film last night was boring.",
    "The soup was too salty.",
    "The moon is a long way from the earth.",
    "Paris is the capital of France.",
    "Somebody parked in front of the gate today.",
    "There was a long queue at the post office.",
    "I can't find the keys.",
    "I forgot the umbrella on the bus.",
    "Let's talk about something else.",
    "Let's get back to the recipe.",
    "I'm in a hurry now.",
    "I'm a bit hungry.",
    "I wonder what time it is.",
    "I wonder why cats purr.",
    "Never mind.",
    "Forget what I just asked.",
    "You are very helpful.",
    "You told me that already.",
    "I'm listening to the radio.",
    "I'm watching the rain.",
    "I think the second version was better.",
    "I like the first line of your poem.",
    "Pretend to be a pirate.",
    "Act as if you were my teacher.",
    "He said the meeting was moved to three o'clock.",
    "She laughed about the joke you made.",
    "I burnt the toast.",
    "I spilled coffee on the table.",
    "What would you do with a free afternoon?",
    "Which of the two would you choose?",
];
