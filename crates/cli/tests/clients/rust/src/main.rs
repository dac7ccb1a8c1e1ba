//! `async-openai` against a running server: what Rust programs do, and what they rely on.
//!
//! ```sh
//! cargo run -- http://127.0.0.1:8080 KEY
//! ```
//!
//! The server has four places (`--batch 2 --queue 2`) and the key KEY. Ends with 0 if everything held.

use async_openai::Client;
use async_openai::config::OpenAIConfig;
use async_openai::error::{ApiErrorResponse, OpenAIError};
use async_openai::middleware::ReqwestService;
use async_openai::types::chat::{
    ChatCompletionMessageToolCalls, ChatCompletionNamedToolChoice,
    ChatCompletionRequestAssistantMessageArgs, ChatCompletionRequestMessage,
    ChatCompletionRequestToolMessageArgs, ChatCompletionRequestUserMessage,
    ChatCompletionStreamOptions, ChatCompletionTool, ChatCompletionToolChoiceOption,
    ChatCompletionTools, CreateChatCompletionRequest, CreateChatCompletionRequestArgs,
    CreateChatCompletionResponse, FinishReason, FunctionObjectArgs, ResponseFormat,
    ResponseFormatJsonSchema, Role, ToolChoiceOptions,
};
use async_openai::types::completions::CreateCompletionRequestArgs;
use async_openai::types::embeddings::{CreateEmbeddingRequestArgs, EncodingFormat};
use async_openai::types::responses::{CreateResponseArgs, ResponseStreamEvent};
use futures::StreamExt;
use serde_json::{Value, json};
use std::time::Duration;

type Failure = Box<dyn std::error::Error>;
type Done = Result<(), Failure>;

struct Suite {
    url: String,
    client: Client<OpenAIConfig>,
    /// Asks once and no more.
    once: Client<OpenAIConfig>,
}

#[tokio::main]
async fn main() -> Done {
    let mut args = std::env::args().skip(1);
    let (Some(url), Some(key)) = (args.next(), args.next()) else {
        return Err("usage: openai-suite URL KEY".into());
    };
    let suite = Suite {
        client: client(&url, &key),
        once: client(&url, &key).with_http_service(ReqwestService::default()),
        url,
    };
    let mut number = 0;
    macro_rules! check {
        ($($name:ident)*) => {$(
            number += 1;
            suite.$name().await.map_err(|error| format!("{}: {error}", stringify!($name)))?;
            println!("{number:2} {}", stringify!($name));
        )*};
    }
    check! {
        plain streaming several_choices stop_strings log_probabilities text_completions
        tools_that_must_be_called tools_in_a_stream one_call_at_most json_schemas sessions
        responses embeddings models errors no_place
    }
    println!("{number} checks held with async-openai");
    Ok(())
}

fn client(url: &str, key: &str) -> Client<OpenAIConfig> {
    let config = OpenAIConfig::new();
    Client::with_config(config.with_api_base(format!("{url}/v1")).with_api_key(key))
}

/// Fails with where it stands.
fn hold(holds: bool, what: impl std::fmt::Debug) -> Done {
    match holds {
        true => Ok(()),
        false => Err(format!("{what:?}").into()),
    }
}

fn user(text: &str) -> ChatCompletionRequestMessage {
    ChatCompletionRequestUserMessage::from(text).into()
}

fn hello() -> CreateChatCompletionRequestArgs {
    let mut args = CreateChatCompletionRequestArgs::default();
    args.model("any")
        .messages([user("Say hello.")])
        .max_tokens(12u32)
        .temperature(0.0);
    args
}

fn weather() -> ChatCompletionTools {
    let parameters = json!({
        "type": "object",
        "properties": {
            "city": { "type": "string", "maxLength": 24 },
            "unit": { "enum": ["celsius", "fahrenheit"] },
        },
        "required": ["city", "unit"],
        "additionalProperties": false,
    });
    let function = FunctionObjectArgs::default()
        .name("get_weather")
        .description("The weather of a city.")
        .parameters(parameters)
        .build();
    ChatCompletionTools::Function(ChatCompletionTool {
        function: function.unwrap_or_default(),
    })
}

fn asked() -> CreateChatCompletionRequestArgs {
    let mut args = hello();
    args.messages([user("What is the weather in Paris?")])
        .tools([weather()])
        .max_tokens(120u32);
    args
}

/// What was refused, and how.
fn refused<T: std::fmt::Debug>(found: Result<T, OpenAIError>) -> Result<ApiErrorResponse, Failure> {
    match found {
        Err(OpenAIError::ApiError(error)) => Ok(error),
        other => Err(format!("{other:?} was not refused").into()),
    }
}

impl Suite {
    async fn ask(
        &self,
        request: CreateChatCompletionRequest,
    ) -> Result<CreateChatCompletionResponse, OpenAIError> {
        self.client.chat().create(request).await
    }

    async fn text(&self, request: CreateChatCompletionRequest) -> Result<String, Failure> {
        let answer = self.ask(request).await?;
        let first = answer.choices.into_iter().next().ok_or("no choice")?;
        Ok(first.message.content.ok_or("no text")?)
    }

    async fn plain(&self) -> Done {
        let answer = self.ask(hello().build()?).await?;
        let choice = &answer.choices[0];
        hold(choice.message.role == Role::Assistant, &choice)?;
        let ended = [Some(FinishReason::Stop), Some(FinishReason::Length)];
        hold(ended.contains(&choice.finish_reason), &choice)?;
        let usage = answer.usage.as_ref().ok_or("no usage")?;
        hold(
            usage.prompt_tokens + usage.completion_tokens == usage.total_tokens,
            usage,
        )?;
        let again = self.text(hello().build()?).await?;
        hold(
            Some(&again) == choice.message.content.as_ref() && !again.is_empty(),
            again,
        )
    }

    async fn streaming(&self) -> Done {
        let whole = self.text(hello().build()?).await?;
        let options = ChatCompletionStreamOptions {
            include_usage: Some(true),
            include_obfuscation: None,
        };
        let request = hello().stream(true).stream_options(options).build()?;
        let mut stream = self.client.chat().create_stream(request).await?;
        let (mut text, mut usage, mut finish) = (String::new(), None, None);
        while let Some(chunk) = stream.next().await {
            let chunk = chunk?;
            usage = chunk.usage.or(usage);
            for choice in chunk.choices {
                text.push_str(choice.delta.content.as_deref().unwrap_or_default());
                finish = choice.finish_reason.or(finish);
            }
        }
        hold(text == whole && finish.is_some(), (text, finish))?;
        hold(
            usage.is_some_and(|usage| usage.total_tokens > 0),
            "no usage",
        )
    }

    async fn several_choices(&self) -> Done {
        let answer = self
            .ask(hello().n(3).temperature(1.5).seed(1).build()?)
            .await?;
        let order: Vec<u32> = answer.choices.iter().map(|choice| choice.index).collect();
        let mut texts: Vec<_> = answer
            .choices
            .iter()
            .map(|c| c.message.content.clone())
            .collect();
        texts.sort();
        texts.dedup();
        hold(order == [0, 1, 2] && texts.len() > 1, texts)
    }

    async fn stop_strings(&self) -> Done {
        let whole = self.text(hello().max_tokens(40u32).build()?).await?;
        let mark = whole
            .chars()
            .nth(whole.chars().count() / 2)
            .ok_or("no text")?;
        let answer = self
            .ask(hello().max_tokens(40u32).stop(mark.to_string()).build()?)
            .await?;
        let choice = &answer.choices[0];
        let want = whole.split(mark).next();
        hold(choice.message.content.as_deref() == want, &choice)?;
        hold(choice.finish_reason == Some(FinishReason::Stop), &choice)
    }

    async fn log_probabilities(&self) -> Done {
        let answer = self
            .ask(hello().logprobs(true).top_logprobs(3).build()?)
            .await?;
        let logprobs = answer.choices[0]
            .logprobs
            .as_ref()
            .and_then(|l| l.content.as_ref());
        let tokens = logprobs.ok_or("no log-probabilities")?;
        let fits = |token: &_| {
            let token: &async_openai::types::chat::ChatCompletionTokenLogprob = token;
            token.logprob <= 0.0 && token.top_logprobs.len() == 3
        };
        hold(!tokens.is_empty() && tokens.iter().all(fits), tokens)
    }

    async fn text_completions(&self) -> Done {
        let mut request = CreateCompletionRequestArgs::default();
        request
            .model("any")
            .prompt("The capital of France is")
            .max_tokens(3u32)
            .temperature(0.0);
        let answer = self.client.completions().create(request.build()?).await?;
        let whole = &answer.choices[0].text;
        hold(whole.contains("Paris"), whole)?;
        let request = request.stream(true).build()?;
        let mut stream = self.client.completions().create_stream(request).await?;
        let mut text = String::new();
        while let Some(chunk) = stream.next().await {
            chunk?
                .choices
                .iter()
                .for_each(|choice| text.push_str(&choice.text));
        }
        hold(text == *whole, text)
    }

    async fn tools_that_must_be_called(&self) -> Done {
        let required = ChatCompletionToolChoiceOption::Mode(ToolChoiceOptions::Required);
        let named = ChatCompletionNamedToolChoice::from("get_weather");
        for choice in [required, ChatCompletionToolChoiceOption::Function(named)] {
            let answer = self.ask(asked().tool_choice(choice).build()?).await?;
            let choice = &answer.choices[0];
            hold(
                choice.finish_reason == Some(FinishReason::ToolCalls),
                &choice,
            )?;
            let calls = choice.message.tool_calls.clone().unwrap_or_default();
            let [ChatCompletionMessageToolCalls::Function(call)] = &calls[..] else {
                return Err(format!("{calls:?}").into());
            };
            let arguments: Value = serde_json::from_str(&call.function.arguments)?;
            let unit = arguments["unit"].as_str().unwrap_or_default();
            hold(call.function.name == "get_weather", &call)?;
            hold(["celsius", "fahrenheit"].contains(&unit), &arguments)?;
            // The result goes back, and text comes.
            let id = call.id.clone();
            let called = ChatCompletionRequestAssistantMessageArgs::default()
                .tool_calls(calls)
                .build()?;
            let result = ChatCompletionRequestToolMessageArgs::default()
                .tool_call_id(id)
                .content("18 degrees")
                .build()?;
            let messages = [
                user("What is the weather in Paris?"),
                called.into(),
                result.into(),
            ];
            let none = ChatCompletionToolChoiceOption::Mode(ToolChoiceOptions::None);
            let text = self.text(
                asked()
                    .messages(messages)
                    .tool_choice(none)
                    .max_tokens(12u32)
                    .build()?,
            );
            hold(!text.await?.is_empty(), "no text behind a result")?;
        }
        Ok(())
    }

    async fn tools_in_a_stream(&self) -> Done {
        let required = ChatCompletionToolChoiceOption::Mode(ToolChoiceOptions::Required);
        let request = asked().tool_choice(required).stream(true).build()?;
        let mut stream = self.client.chat().create_stream(request).await?;
        let (mut name, mut arguments, mut finish) = (String::new(), String::new(), None);
        while let Some(chunk) = stream.next().await {
            for choice in chunk?.choices {
                finish = choice.finish_reason.or(finish);
                for call in choice.delta.tool_calls.unwrap_or_default() {
                    hold(call.index == 0, &call)?;
                    let function = call.function.ok_or("no function")?;
                    name.push_str(function.name.as_deref().unwrap_or_default());
                    arguments.push_str(function.arguments.as_deref().unwrap_or_default());
                }
            }
        }
        let arguments: Value = serde_json::from_str(&arguments)?;
        hold(
            finish == Some(FinishReason::ToolCalls) && name == "get_weather",
            (finish, name),
        )?;
        hold(arguments["city"].is_string(), arguments)
    }

    async fn one_call_at_most(&self) -> Done {
        let answer = self
            .ask(
                asked()
                    .parallel_tool_calls(false)
                    .max_tokens(60u32)
                    .build()?,
            )
            .await?;
        let message = &answer.choices[0].message;
        let calls = message.tool_calls.as_ref().map_or(0, Vec::len);
        hold(
            calls <= 1 && (calls == 1 || message.content.is_some()),
            message,
        )
    }

    async fn json_schemas(&self) -> Done {
        let schema = json!({
            "type": "object",
            "properties": { "mood": { "enum": ["happy", "sad"] }, "score": { "type": "integer" } },
            "required": ["mood", "score"],
            "additionalProperties": false,
        });
        let format = ResponseFormat::JsonSchema {
            json_schema: ResponseFormatJsonSchema {
                name: "mood".to_owned(),
                schema,
                strict: Some(true),
                description: None,
            },
        };
        let answer = self
            .ask(hello().max_tokens(100u32).response_format(format).build()?)
            .await?;
        let choice = &answer.choices[0];
        let text = choice.message.content.as_deref().unwrap_or_default();
        if choice.finish_reason == Some(FinishReason::Stop) {
            let found: Value = serde_json::from_str(text)?;
            hold(found["score"].is_i64() && found["mood"].is_string(), found)?;
        }
        let text = self.text(
            hello()
                .max_tokens(8u32)
                .response_format(ResponseFormat::JsonObject)
                .build()?,
        );
        hold(text.await?.trim_start().starts_with('{'), "no object")
    }

    /// What is ours goes beside what is standard, with types of one's own.
    async fn sessions(&self) -> Done {
        let name = format!("suite-{}", std::process::id());
        let say = async |text: &str| -> Result<Value, Failure> {
            let request = json!({
                "model": "any",
                "messages": [{ "role": "user", "content": text }],
                "max_tokens": 12,
                "temperature": 0,
                "session_id": name,
            });
            Ok(self.client.chat().create_byot(request).await?)
        };
        let first = say("My cat is called Minka.").await?;
        hold(first["context"]["turn"].is_u64(), &first)?;
        let second = say("What is my cat called?").await?;
        let cached = &second["usage"]["prompt_tokens_details"]["cached_tokens"];
        hold(cached.as_u64().is_some_and(|cached| cached > 0), &second)?;
        // A cache key names no session, whatever it is.
        let request = hello().prompt_cache_key(name).build()?;
        hold(!self.text(request).await?.is_empty(), "no text")
    }

    async fn responses(&self) -> Done {
        let mut request = CreateResponseArgs::default();
        request
            .model("any")
            .input("Say hello.")
            .instructions("Be brief.")
            .max_output_tokens(12u32)
            .temperature(0.0);
        let answer = self.client.responses().create(request.build()?).await?;
        let whole = answer.output_text().ok_or("no text")?;
        let usage = answer.usage.as_ref().ok_or("no usage")?;
        hold(
            usage.input_tokens + usage.output_tokens == usage.total_tokens,
            usage,
        )?;
        let request = request.stream(true).build()?;
        let mut stream = self.client.responses().create_stream(request).await?;
        let (mut text, mut ended) = (String::new(), false);
        while let Some(event) = stream.next().await {
            match event? {
                ResponseStreamEvent::ResponseOutputTextDelta(piece) => text.push_str(&piece.delta),
                ResponseStreamEvent::ResponseCompleted(_) => ended = true,
                ResponseStreamEvent::ResponseIncomplete(_) => ended = true,
                _ => {}
            }
        }
        hold(text == whole && ended, (text, whole, ended))
    }

    async fn embeddings(&self) -> Done {
        let texts = [
            "My cat is called Minka.",
            "What is my cat's name?",
            "Interest rates rose.",
        ];
        let request = CreateEmbeddingRequestArgs::default()
            .model("minilm")
            .input(texts)
            .build()?;
        let answer = self.client.embeddings().create(request).await?;
        let vectors: Vec<&Vec<f32>> = answer.data.iter().map(|item| &item.embedding).collect();
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        hold(
            vectors.iter().all(|v| v.len() == 384) && vectors.len() == 3,
            vectors.len(),
        )?;
        let (near, far) = (dot(vectors[0], vectors[1]), dot(vectors[0], vectors[2]));
        hold(near > far + 0.2, (near, far))?;
        let request = CreateEmbeddingRequestArgs::default()
            .model("minilm")
            .input(texts[0])
            .encoding_format(EncodingFormat::Base64)
            .build()?;
        let packed = self.client.embeddings().create_base64(request).await?;
        hold(packed.data.len() == 1, packed)
    }

    async fn models(&self) -> Done {
        let listed = self.client.models().list().await?;
        let [only] = &listed.data[..] else {
            return Err(format!("{listed:?}").into());
        };
        let found = self.client.models().retrieve(&only.id).await?;
        hold(found.id == only.id, found)?;
        let error = refused(self.client.models().retrieve("another").await)?;
        hold(error.status_code == 404, error)
    }

    async fn errors(&self) -> Done {
        let schema = ResponseFormat::JsonSchema {
            json_schema: ResponseFormatJsonSchema {
                name: "x".to_owned(),
                schema: json!({ "type": "wat" }),
                ..Default::default()
            },
        };
        for (request, param) in [
            (hello().n(0).build()?, Some("n")),
            (hello().temperature(-1.0).build()?, None),
            (
                hello().response_format(schema).build()?,
                Some("response_format"),
            ),
            (hello().messages([]).build()?, Some("messages")),
        ] {
            let error = refused(self.ask(request).await)?;
            hold(error.status_code == 400, &error)?;
            hold(
                param.is_none() || error.api_error.param.as_deref() == param,
                &error,
            )?;
        }
        // Of a stream too: it has not begun.
        let request = hello().n(0).stream(true).build()?;
        let begun = self.client.chat().create_stream(request).await;
        let error = match begun {
            Ok(mut stream) => match stream.next().await {
                Some(Err(error)) => error,
                _ => return Err("a stream of a bad request began".into()),
            },
            Err(error) => error,
        };
        hold(error.to_string().contains("accepted"), error)?;
        let stranger = client(&self.url, "wrong");
        let error = refused(stranger.models().list().await)?;
        hold(error.status_code == 401, error)
    }

    /// Four who never end take all places. Who asks once is turned away; who comes back gets one when they leave.
    async fn no_place(&self) -> Done {
        let endless = || {
            let bias = [("0", -100), ("2", -100)].map(|(id, bias)| (id.to_owned(), bias));
            let mut args = hello();
            args.max_tokens(1500u32)
                .stream(true)
                .logit_bias(std::collections::HashMap::from(bias));
            args
        };
        let mut streams = Vec::new();
        for _ in 0..4 {
            streams.push(self.client.chat().create_stream(endless().build()?).await?);
        }
        let error = refused(self.once.chat().create(hello().build()?).await)?;
        hold(error.status_code == 429, error)?;
        let request = hello().build()?;
        let back = self.ask(request);
        let leave = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            streams.clear();
        };
        let (answer, ()) = futures::join!(back, leave);
        hold(!answer?.choices.is_empty(), "no choice")
    }
}
