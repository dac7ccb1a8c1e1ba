//! What people say between the things that matter: with the same names, and with the words that questions use.
//!
//! `{P}` and `{Q}` are people; `{t}` is a thing, `{l}` a place, `{f}` food, `{a}` how it was, `{n}` a number, `{d}` a day.

use crate::dice::Dice;

const THINGS: &str = "dishwasher, printer, washing line, door handle, bicycle pump, radiator, coat, tax form, curtain rail, \
    toaster, phone charger, garden hose, mattress, kettle, vacuum cleaner, remote control, suitcase, window pane, key ring, \
    shower head, raincoat, bookshelf, router, smoke alarm, frying pan, ironing board, letter box, hedge, deck chair, \
    extension lead";
const PLACES: &str = "the supermarket, the park, the station, the post office, the swimming pool, the canteen, the town hall, \
    the car park, the bus stop, the museum, the playground, the bridge, the river, the hardware store, the chemist's, \
    the gym, the market square, the library steps, the corner shop, the waiting room";
const FOODS: &str = "soup, bread, salad, rice, potatoes, an omelette, noodles, a sandwich, porridge, toast, a pie, beans, \
    yoghurt, cheese, a cake, leftovers, an apple, biscuits, fish, mushrooms";
const HOW: &str = "rather dull, better than expected, a bit of a mess, surprisingly cheap, far too loud, quite pleasant, \
    a waste of an hour, funny in a way, exhausting, nothing special, lovely, hopeless, very slow, good fun, odd";
const DAYS: &str = "on Monday, on Tuesday, on Wednesday, on Thursday, on Friday, at the weekend, yesterday, last night, \
    this morning, the other day, tomorrow, in the afternoon";

const SAID: [&str; 84] = [
    "The {t} gave up the ghost {d} and I have no idea who repairs such things.",
    "I stood in a queue at {l} for {n} minutes, it was {a}.",
    "{P} rang {d}, we talked about nothing in particular.",
    "It has been raining since breakfast and the {t} is still outside.",
    "I made {f} and burnt half of it.",
    "Do you think I should throw away the {t}?",
    "{P} and {Q} had lunch at {l}, it was {a} as far as I heard.",
    "I can't find the {t} anywhere, it must be under something.",
    "My back hurts from carrying the {t} upstairs.",
    "There was a film on {d}, {a}, I fell asleep in the middle.",
    "What would you cook with {f} and not much else?",
    "The traffic near {l} was {a} again.",
    "{P} still has my {t}, I must ask for it.",
    "I went for a walk to {l} and met nobody.",
    "How do I get a stain out of a tablecloth?",
    "Is it normal that a {t} hums?",
    "I promised {P} to look after the {t} for a few days.",
    "We have a meeting {d}, it will be {a}.",
    "I need a good excuse for {P}, any idea?",
    "There are {n} messages I haven't answered.",
    "{Q} thinks {P} talks too much, but I don't mind.",
    "I've been thinking about painting the kitchen, perhaps green.",
    "At {l} they were giving away {f} for nothing.",
    "The neighbours had a party until {n} minutes past two.",
    "I tried to explain to {P} how the {t} works, it was {a}.",
    "How long can one keep {f} in the fridge?",
    "I bought a new {t} {d}, it was {a}.",
    "What is a polite way to say no to {P}?",
    "{P} was at {l} too, in a hurry as always.",
    "I feel like doing nothing at all today.",
    "Remind me that the {t} has to go back to the shop.",
    "Do people really work better at home than in an office?",
    "Which animals sleep the most, do you know?",
    "I read that most allergies begin in childhood.",
    "Some town in the north has banned cars, I forget which.",
    "What makes a house a home, in your opinion?",
    "Is it hard to learn an instrument as a grown-up?",
    "What colour would you paint a fence?",
    "I never know what to give people for their birthday.",
    "Everybody seems to have a hobby except me.",
    "Holidays are so expensive in summer, {P} says the same.",
    "What would you study if you could start over?",
    "Can one break a bone without noticing?",
    "I don't understand the rules of most sports.",
    "What is the favourite dish of people in your country?",
    "I am afraid the {t} won't last another year.",
    "Money is a subject {P} and I avoid.",
    "How do people find a name for a child?",
    "Which profession will still exist in a hundred years?",
    "How many languages are there in the world?",
    "The way to the office gets longer every day, I swear.",
    "I lost a glove at {l}, only the left one.",
    "What time is it best to get up, do you think?",
    "Weddings make me nervous, {P} knows why.",
    "Nothing grows on my balcony, not even weeds.",
    "The stairs in {Q}'s building smell of {f}.",
    "I would like to be an expert on something, anything.",
    "Medicine always tastes {a}, doesn't it?",
    "What did people wear a hundred years ago?",
    "I am thirsty all the time in this heat, is {f} a bad idea?",
    "Does it make sense to collect things?",
    "When I was young we had no {t}.",
    "The noise at {l} is {a}.",
    "If I won the lottery I would tell nobody, not even {P}.",
    "{P} wants to meet at {l} {d}, I said maybe.",
    "I counted {n} pigeons in front of {l}.",
    "The {t} is a present nobody wanted, says {Q}.",
    "{P}'s home is always tidy, mine never.",
    "I asked {Q} what {P} was so angry about, no answer.",
    "We watched the ducks near {l}, {P} threw them bread.",
    "{Q} lent {P} a {t} and now neither of them has it.",
    "Could you write two lines that I can put on a card for {P}?",
    "I had {f} at {P}'s, it was {a}.",
    "{P} hurt {Q}'s feelings {d}, I stayed out of it.",
    "The job of a traffic warden must be {a}.",
    "Tell me something about the moon.",
    "I slept {n} hours at most.",
    "Why do cats knock things off tables?",
    "{P} travels too much if you ask me, and {Q} too little.",
    "I think {P} would like {l}, the light is so nice there.",
    "Did I tell you that the {t} squeaks?",
    "{Q} lives far out, the last bus was {a}.",
    "{P} has a new jacket, {a}.",
    "The doctor's waiting room was full, I read a magazine about {f}.",
];

const ANSWERED: [&str; 48] = [
    "That sounds {a}. Perhaps tomorrow will be easier.",
    "I see. What are you going to do about the {t}?",
    "You could ask at {l}, they often know.",
    "Take your time. There is no hurry with such things.",
    "Oh dear. I hope it gets better soon.",
    "That happens to everyone now and then.",
    "In my opinion {f} would be a good start.",
    "I would wait until the weekend and then decide.",
    "How nice! Say hello to {P} from me.",
    "Maybe {P} can help you with it, or {Q}.",
    "Try lukewarm water and a little salt, and don't rub.",
    "It depends. Some people like it, others find it {a}.",
    "About {n}, if I remember correctly, but it varies.",
    "A short and friendly message is usually enough.",
    "Good idea. Write it down before you forget it.",
    "I can imagine. Did you get any rest afterwards?",
    "Most of the time the cause is something simple, a loose screw or a cable.",
    "That is hard to say from here. What does {P} think?",
    "You might put the {t} next to the door, then you will see it.",
    "Three days in a closed box is fine, longer is a risk.",
    "Certainly. Is there anything in particular you want to know?",
    "It is about four hundred thousand kilometres away and has no air.",
    "They do it for attention, and because it is fun to see things fall.",
    "Then leave it for today.",
    "Some walk, some read, some simply sit at {l}. What do you enjoy?",
    "There are more than six thousand of them, many with few speakers.",
    "It is never too late, a quarter of an hour a day is enough.",
    "Thank you for telling me.",
    "I hope the rest of the day is quieter.",
    "Then {P} must have been surprised.",
    "Light colours make a small room look larger.",
    "If it hums only now and then, I would not worry.",
    "That was generous. And what did you get in return?",
    "I would say so, although {Q} might see it differently.",
    "A walk to {l} might do you good.",
    "Koalas, I believe: up to twenty-two hours a day.",
    "Something that takes little room and can be eaten is rarely wrong.",
    "Old names come back every hundred years or so.",
    "The simplest excuse is the truth: that you are tired.",
    "Noted. Anything else for today?",
    "Yes, and it is more common than one would think.",
    "Let it cool first, then try again with less heat.",
    "I am glad to hear that.",
    "What a pity. Perhaps {l} has a lost property office.",
    "Sure: all the best, and many quiet evenings.",
    "Nobody has a good answer to that, I am afraid.",
    "It sounds as if you need a break, with {f} and a blanket.",
    "Understood. I won't mention it to {P}.",
];

/// What is answered to something that was told.
pub(super) const HEARD: [&str; 12] = [
    "Oh, I did not know that.",
    "Good to know, thank you.",
    "Really? I would not have guessed.",
    "I see, that is news.",
    "All right, I will keep that in mind.",
    "How did you find out?",
    "Well, well. And what do you make of it?",
    "Interesting. Was {Q} surprised as well?",
    "Ah, that explains a lot.",
    "Then things are changing quickly.",
    "Fine. Let us see how it goes on.",
    "I understand. Is there anything I can do?",
];

/// Fills the blanks of small talk. Names come from `people`.
pub(super) fn fill(dice: &mut Dice, template: &str, people: &[&str]) -> String {
    let (p, q) = (dice.pick(people), dice.pick(people));
    let mut text = template.replace("{P}", p).replace("{Q}", q);
    for (blank, list) in [
        ("{t}", THINGS),
        ("{l}", PLACES),
        ("{f}", FOODS),
        ("{a}", HOW),
        ("{d}", DAYS),
    ] {
        if text.contains(blank) {
            text = text.replace(blank, dice.word(list));
        }
    }
    text.replace("{n}", &(3 + dice.below(57)).to_string())
}

/// A sentence of the one who talks.
pub(super) fn said(dice: &mut Dice, people: &[&str]) -> String {
    let template = dice.pick(&SAID);
    fill(dice, template, people)
}

/// A sentence of the one who answers.
pub(super) fn answered(dice: &mut Dice, people: &[&str]) -> String {
    let template = dice.pick(&ANSWERED);
    fill(dice, template, people)
}
