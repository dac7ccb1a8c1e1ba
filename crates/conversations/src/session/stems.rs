//! Words as turns are compared by them: without endings, and which of a question's words say nothing. Pure.

/// Words that make a text a question, or hold a sentence together: English, German, French, Spanish, Italian, Portuguese.
/// They say nothing about what is asked. Those that mean something in another of these languages are left out ("war", "die").
const FUNCTION_WORDS: &str = "
    a about an and are as at be been by can could d did do does for from had has have he her here him his how i
    if in into is it its ll m may me might my no not of on or our re s shall she should so t than that the their
    them then there these they this those to ve was we were what when where which who whom whose why will with
    would you your
    aber als am auch auf aus bei bin bist da das dass dein deine dem der dich dir du durch ein eine einem einen
    einer eines er es für haben habe hatte hatten ich ihm ihn ihr ihre im ist ja kann kein keine mein meine
    meinem meinen meiner mich mir mit nach nicht oder sein seine sich sie sind über um und uns unser unsere vom
    von wann waren warum was weil wem wen wer werden wie wieso wird wo woher wohin wurde wurden zu zum zur
    à au aux avec avait c ce ces cette d dans de des du elle elles en est et était été eux il ils j je l la le
    les leur leurs lui mes moi n ne nos notre nous ont où par pas pourquoi qu quand que quel quelle quelles
    quels qui quoi sa se ses sont sur ta te tes toi tu un une vos votre vous y
    al algo como con cuál cuando cuándo cuánto de del donde dónde e el ella ellas ellos él es esta está este
    esto estos fue ha había la las le les lo los me mi mis muy más no nos o para pero por porque qué que quién
    quien se ser si sí sobre su sus también te tiene tu tus un una uno unos y ya yo
    che chi cosa da dal dalla dei della di gli io lei loro lui mia mio nel nella non per perché più quale quando
    questo sono suo sua tuo tua
    ao às com da das do dos ela ele eles em essa esse eu foi isso mais meu minha na nas não nem onde os ou pela
    pelo qual quem são seu sua tem uma você
";

/// Words for somebody who was named before, as a sentence begins with them, in the same languages. Where a language does
/// without ("Es médico"), sentences have none of them.
const PRONOUNS: &str = "
    he she it they his her hers its their theirs
    er sie es ihr ihre sein seine
    il elle ils elles son sa ses leur leurs
    él ella ellos ellas
    lei lui loro
    ele ela eles elas
";

/// Words that say whose somebody is, before the word for who it is.
const POSSESSIVES: &str = "
    my our mein meine meinem meinen meiner meines unser unsere unserem unseren unserer mon ma mes notre nos mi mis
    nuestro nuestra mio mia meu minha nosso nossa
";

/// Whether a word in lower case is one of them.
pub(super) fn is_function_word(word: &str) -> bool {
    FUNCTION_WORDS.split_whitespace().any(|empty| empty == word)
}

/// Whether a sentence of the text begins with a pronoun: who it is about was named before.
pub(super) fn begins_with_pronoun(text: &str) -> bool {
    let sentences = text.split(['.', '?', '!', '…', ':', '\n']);
    let mut first = sentences.filter_map(|sentence| {
        let mut words = sentence.split(|c: char| !c.is_alphanumeric());
        words.find(|word| !word.is_empty())
    });
    first.any(|word| {
        let word = word.to_lowercase();
        PRONOUNS.split_whitespace().any(|pronoun| pronoun == word)
    })
}

/// A question that says who somebody is to the one who asks ("Where does my dentist live?"), in two: "my dentist?" and
/// "Where does live?". What they are called is told in one turn, and the rest in another.
pub(super) fn split_by_person(question: &str) -> Option<[String; 2]> {
    let mut before: Option<usize> = None;
    let mut start = 0;
    for part in question.split_inclusive(|c: char| !c.is_alphanumeric()) {
        let word = part.trim_end_matches(|c: char| !c.is_alphanumeric());
        let end = start + word.len();
        let lower = word.to_lowercase();
        if let Some(begin) = before.take()
            && !word.is_empty()
            && !is_function_word(&lower)
        {
            let rest = format!("{}{}", &question[..begin], question[end..].trim_start());
            return Some([format!("{}?", &question[begin..end]), rest]);
        }
        let is_possessive = POSSESSIVES.split_whitespace().any(|mine| mine == lower);
        // A space follows, and nothing that ends a sentence.
        before = (is_possessive && part.ends_with(' ')).then_some(start);
        start += part.len();
    }
    None
}

/// Takes the usual English endings off a word in lower case. Words with other letters than those of English are as they are.
pub(super) fn stem(word: &mut String) {
    if word.len() < 4 || !word.is_ascii() {
        return;
    }
    if word.len() > 4 && word.ends_with("ies") {
        word.truncate(word.len() - 3);
        word.push('y');
        return;
    }
    let endings = ["ing", "ed", "es", "s"].into_iter();
    let mut endings = endings.filter(|end| word.ends_with(end) && word.len() >= end.len() + 3);
    if let Some(end) = endings.next()
        && !word.ends_with("ss")
    {
        word.truncate(word.len() - end.len());
        let [.., a, b] = word.as_bytes() else { return };
        if a == b && word.len() > 3 {
            word.pop();
        }
    }
    if word.len() > 3 && word.ends_with('e') {
        word.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_of_a_word_have_one_stem() {
        for forms in [
            "paint paints painted painting",
            "story stories",
            "bake bakes baked baking",
            "stop stops stopped stopping",
            "hike hikes hiking",
        ] {
            let stems = forms.split(' ').map(|form| {
                let mut word = form.to_owned();
                stem(&mut word);
                word
            });
            let stems: Vec<String> = stems.collect();
            assert!(stems.iter().all(|stem| *stem == stems[0]), "{stems:?}");
        }
    }

    #[test]
    fn sentences_that_begin_with_a_pronoun() {
        for text in [
            "She got the job.",
            "It rains. He's at home, I think.",
            "So: ils sont là",
            "Er schläft",
            "Nora rang. Hers?No",
        ] {
            assert!(begins_with_pronoun(text), "{text}");
        }
        for text in [
            "I saw her.",
            "Nora rang, she was late",
            "Heather rang.",
            "…",
            "",
        ] {
            assert!(!begins_with_pronoun(text), "{text}");
        }
    }

    #[test]
    fn a_question_about_my_dentist_is_two() {
        let parts = |question| split_by_person(question).map(|parts| parts.join(" | "));
        for (question, expected) in [
            (
                "Where does my dentist live?",
                "my dentist? | Where does live?",
            ),
            ("My boss: what is he like?", "My boss? | : what is he like?"),
            (
                "Wo wohnt meine Zahnärztin?",
                "meine Zahnärztin? | Wo wohnt ?",
            ),
        ] {
            assert_eq!(parts(question).as_deref(), Some(expected));
        }
        for question in ["Where does Nora live?", "Is it my, his or hers?", "my", ""] {
            assert_eq!(parts(question), None, "{question}");
        }
    }

    #[test]
    fn short_words_and_those_of_other_scripts_stay() {
        for word in ["is", "bus", "red", "été", "straßes", "猫", "42"] {
            let mut stemmed = word.to_owned();
            stem(&mut stemmed);
            assert_eq!(stemmed, word);
        }
    }
}
